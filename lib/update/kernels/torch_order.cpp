// SPDX-License-Identifier: Apache-2.0
// Updates with the bits of torch.optim on a CPU: the operations of its single-tensor path (lerp_,
// mul_, addcmul_, sqrt, div, add_, addcdiv_), each rounded where ATen rounds it. Its kernels are
// compiled so that a product and the sum it goes into are one operation wherever the processor has
// AVX2 and FMA, in vectors and in what remains after them alike; so are the MulAdd here. On the
// calling thread, no allocation. Compiled once per target.
#include "lib/update/kernels/float_environment.h"
#include "lib/update/kernels/kernels.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/update/kernels/torch_order.cpp"
#include "lib/update/kernels/highway.h"
#include "lib/update/kernels/update_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stepwell::kernels::HWY_NAMESPACE {
namespace {

template <class D, class V = hn::Vec<D>>
HWY_INLINE V torch_decayed(D d, const Coefficients &c, V gradient, V parameter)
{
    if (c.decay != Decay::kCoupled) return gradient;
    return hn::MulAdd(parameter, hn::Set(d, c.decay_factor), gradient);
}

// addcdiv_
template <class D, class V = hn::Vec<D>>
HWY_INLINE V torch_moved(D d, const Coefficients &c, V parameter, V direction, V denominator)
{
    const V numerator = hn::Mul(hn::Set(d, c.negative_step_size), direction);
    return hn::Add(parameter, hn::Div(numerator, denominator));
}

// Adam's and AdamW's states; of AdamW the decay as well. From the end where the weight is large, as
// torch.lerp does.
struct TorchMoments {
    static constexpr uint32_t kStates = 2;

    template <class D, class V = hn::Vec<D>>
    static HWY_INLINE V step(D d, const Coefficients &c, V gradient, V parameter, V (&states)[2])
    {
        gradient = torch_decayed(d, c, gradient, parameter);
        const float weight = c.one_minus_beta1;
        const V way = hn::Sub(gradient, states[0]);
        states[0] = weight < 0.5F ? hn::MulAdd(hn::Set(d, weight), way, states[0])
                                  : hn::MulAdd(hn::Set(d, weight - 1.0F), way, gradient);
        const V share = hn::Mul(hn::Set(d, c.one_minus_beta2), gradient);
        const V before = hn::Mul(states[1], hn::Set(d, c.beta2));
        states[1] = hn::MulAdd(share, gradient, before);
        if (c.decay != Decay::kDecoupled) return parameter;
        return hn::Mul(parameter, hn::Set(d, c.decay_factor));
    }
};

// What follows the square roots, which come in the place of the gradient.
struct TorchMomentsApplied {
    static constexpr uint32_t kStates = 1;

    template <class D, class V = hn::Vec<D>>
    static HWY_INLINE V step(D d, const Coefficients &c, V roots, V parameter, V (&states)[2])
    {
        const V corrected = hn::Div(roots, hn::Set(d, c.correction2_sqrt));
        const V denominator = hn::Add(corrected, hn::Set(d, c.eps));
        return torch_moved(d, c, parameter, states[0], denominator);
    }
};

struct TorchSum {
    static constexpr uint32_t kStates = 1;

    template <class D, class V = hn::Vec<D>>
    static HWY_INLINE V step(D d, const Coefficients &c, V gradient, V parameter, V (&states)[2])
    {
        gradient = torch_decayed(d, c, gradient, parameter);
        states[0] = hn::MulAdd(gradient, gradient, states[0]);
        return parameter;
    }
};

// The roots come in the place of the sum: the gradient is needed once more. The parameter is as it
// was, and so is the decayed gradient.
struct TorchSumApplied {
    static constexpr uint32_t kStates = 1;

    template <class D, class V = hn::Vec<D>>
    static HWY_INLINE V step(D d, const Coefficients &c, V gradient, V parameter, V (&states)[2])
    {
        gradient = torch_decayed(d, c, gradient, parameter);
        const V denominator = hn::Add(states[0], hn::Set(d, c.eps));
        return torch_moved(d, c, parameter, gradient, denominator);
    }
};

struct TorchSgd {
    static constexpr uint32_t kStates = 0;

    template <class D, class V = hn::Vec<D>>
    static HWY_INLINE V step(D d, const Coefficients &c, V gradient, V parameter, V (&)[2])
    {
        gradient = torch_decayed(d, c, gradient, parameter);
        return hn::MulAdd(gradient, hn::Set(d, c.negative_step_size), parameter);
    }
};

struct TorchSgdMomentum {
    static constexpr uint32_t kStates = 1;

    template <class D, class V = hn::Vec<D>>
    static HWY_INLINE V step(D d, const Coefficients &c, V gradient, V parameter, V (&states)[2])
    {
        gradient = torch_decayed(d, c, gradient, parameter);
        const V momentum = hn::Set(d, c.momentum);
        if (c.first_step) {
            states[0] = gradient;  // whatever the buffer held
        } else {
            states[0] = hn::MulAdd(gradient, hn::Set(d, c.one_minus_dampening),
                                   hn::Mul(states[0], momentum));
        }
        const V direction = c.nesterov ? hn::MulAdd(states[0], momentum, gradient) : states[0];
        return hn::MulAdd(direction, hn::Set(d, c.negative_step_size), parameter);
    }
};

// In the place of a function of the caller's: the same prototype.
HWY_NOINLINE void nearest_roots(int32_t n, const float *values, float *roots, int64_t /*mode*/)
{
    const hn::ScalableTag<float> d;
    const hn::CappedTag<float, 1> one;
    constexpr int32_t kLanes = static_cast<int32_t>(hn::MaxLanes(hn::ScalableTag<float>()));
    int32_t at = 0;
    for (; n - at >= kLanes; at += kLanes) {
        hn::StoreU(hn::Sqrt(hn::LoadU(d, values + at)), d, roots + at);
    }
    for (; at < n; ++at) hn::StoreU(hn::Sqrt(hn::LoadU(one, values + at)), one, roots + at);
}

// What is before the roots, of which state they are, and what is after them.
struct TorchAdam {
    using Begin = TorchMoments;
    static constexpr uint32_t kRooted = 1;

    static HWY_INLINE void end(const Coefficients &c, Chunk piece, float *roots)
    {
        Coefficients unscaled = c;
        unscaled.gradient_scale = 1.0F;
        piece.gradient = roots;
        by_values<TorchMomentsApplied, F32>(unscaled, piece);
    }
};

struct TorchAdagrad {
    using Begin = TorchSum;
    static constexpr uint32_t kRooted = 0;

    static HWY_INLINE void end(const Coefficients &c, Chunk piece, float *roots)
    {
        piece.states[kRooted] = roots;
        by_gradient<TorchSumApplied>(c, piece);
    }
};

// The parameter is rounded to its dtype at the end alone.
template <class Rule> HWY_INLINE void begin_piece(const Coefficients &c, const Chunk &piece)
{
    switch (piece.gradient_dtype) {
    case STW_F16: return loop<Rule, F16, F32>(c, piece);
    case STW_BF16: return loop<Rule, Bf16, F32>(c, piece);
    default: return loop<Rule, F32, F32>(c, piece);
    }
}

Chunk piece_of(const Chunk &chunk, uint64_t begin, uint64_t count)
{
    const uint64_t value_bytes = chunk.values_dtype == STW_F32 ? 4 : 2;
    const uint64_t gradient_bytes = chunk.gradient_dtype == STW_F32 ? 4 : 2;
    Chunk piece = chunk;
    piece.values = static_cast<char *>(chunk.values) + begin * value_bytes;
    piece.master += begin;
    piece.gradient = static_cast<const char *>(chunk.gradient) + begin * gradient_bytes;
    for (float *&state : piece.states) {
        if (state != nullptr) state += begin;
    }
    piece.count = count;
    return piece;
}

// All roots of a piece by one call, while the piece is in the nearest cache.
template <class Rule>
HWY_INLINE void by_pieces(const Coefficients &c, const Chunk &chunk, const SquareRoot &given)
{
    // A call costs a tenth of its roots.
    constexpr uint64_t kPieceElements = 1024;
    alignas(64) float roots[kPieceElements];
    const auto take_roots = given.function != nullptr ? given.function : nearest_roots;
    for (uint64_t at = 0; at < chunk.count; at += kPieceElements) {
        const Chunk piece = piece_of(chunk, at, std::min(kPieceElements, chunk.count - at));
        begin_piece<typename Rule::Begin>(c, piece);
        take_roots(static_cast<int32_t>(piece.count), piece.states[Rule::kRooted], roots,
                   given.mode);
        Rule::end(c, piece, roots);
    }
}

HWY_NOINLINE void run_torch(Algorithm algorithm, const Coefficients &c, const Chunk &chunk,
                            const SquareRoot &square_root)
{
    switch (algorithm) {
    case Algorithm::kAdamW:
    case Algorithm::kAdam: return by_pieces<TorchAdam>(c, chunk, square_root);
    case Algorithm::kAdagrad: return by_pieces<TorchAdagrad>(c, chunk, square_root);
    case Algorithm::kSgd:
    case Algorithm::kLion: break;  // torch.optim has no Lion, and nobody asks for its order
    }
    if (c.has_momentum) return by_gradient<TorchSgdMomentum>(c, chunk);
    return by_gradient<TorchSgd>(c, chunk);
}

}  // namespace
}  // namespace stepwell::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "lib/update/kernels/dispatch.h"

namespace stepwell::kernels {
namespace {

STEPWELL_DISPATCH(run_torch);

// As Python computes them, for which `step` is a float32's value: it stays at 2^24.
[[gnu::noinline]] void correct_as_torch(const stw_hyper &hyper, uint64_t step, Coefficients &c)
{
    const double t = std::min(static_cast<double>(step), 0x1p24);
    const double correction1 = 1.0 - std::pow(hyper.beta1, t);
    const double correction2 = 1.0 - std::pow(hyper.beta2, t);
    c.negative_step_size = static_cast<float>(-(hyper.lr / correction1));
    c.correction2_sqrt = static_cast<float>(std::pow(correction2, 0.5));
}

// MKL would start threads in each update thread, which spin between its calls and take the
// processors from the program. The setting is the calling thread's alone, and is put back.
class OneThread {
public:
    explicit OneThread(const SquareRoot &root)
        : set_(root.set_threads), before_(set_ != nullptr ? set_(1) : 0)
    {
    }
    ~OneThread()
    {
        if (set_ != nullptr) set_(before_);
    }
    OneThread(const OneThread &) = delete;
    OneThread &operator=(const OneThread &) = delete;

private:
    int32_t (*const set_)(int32_t count);
    const int32_t before_;
};

}  // namespace

Coefficients make_torch_coefficients(Algorithm algorithm, const stw_hyper &hyper, uint64_t step,
                                     double gradient_scale)
{
    Coefficients c = make_coefficients(algorithm, hyper, step, gradient_scale);
    const FloatEnvironment environment;
    if (algorithm == Algorithm::kAdamW || algorithm == Algorithm::kAdam) {
        correct_as_torch(hyper, step, c);
    }
    return c;
}

void update_chunk_as_torch(Algorithm algorithm, const Coefficients &coefficients,
                           const Chunk &chunk, const SquareRoot &square_root)
{
    const FloatEnvironment environment;
    const OneThread alone(square_root);
    run_torch_dispatch.chosen()(algorithm, coefficients, chunk, square_root);
}

}  // namespace stepwell::kernels
#endif
