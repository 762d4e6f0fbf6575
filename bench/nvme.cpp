// SPDX-License-Identifier: Apache-2.0
// nvme.read and nvme.write: a working set larger than the host tier, streamed through it by fetch
// and release, checksums on. The way a program would do it: a few fetches asked ahead.
//
// usage: nvme --dir DIR [--bytes N] [--host-bytes N] [--tensor-bytes N] [--ahead N]
//             [--profile FILE] [--request-bytes N] [--queue-depth N]
// Then commands on stdin, one a line: write, read, quit. Each answers with one JSON line. The first
// write goes into reserved space; later ones overwrite.
#include "measure.h"

#include <cinttypes>
#include <cstdio>
#include <deque>
#include <iostream>

namespace {

using bench::must;

constexpr uint64_t kStampBytes = 2097152;  // one word is stamped and looked at in every such part

class Stream {
public:
    Stream(stw_runtime *runtime, uint64_t bytes, uint64_t tensor_bytes, uint64_t ahead)
        : runtime_(runtime), tensor_bytes_(tensor_bytes), ahead_(ahead)
    {
        for (uint64_t i = 0; i < bytes / tensor_bytes; ++i)
            tensors_.push_back(bench::create_tensor(runtime, nullptr, STW_ROLE_OPTIMIZER_STATE,
                                                    tensor_bytes / sizeof(float), STW_TIER_NVME));
    }
    ~Stream() { stw_tensor_destroy(tensors_.data(), static_cast<uint32_t>(tensors_.size())); }
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;

    // Seconds until every byte is on the drive.
    double write()
    {
        ++pass_;
        const double begin = bench::now_s();
        stream(STW_WRITE);
        all_out();
        return bench::now_s() - begin;
    }

    // Seconds until every byte has been in host memory.
    double read()
    {
        all_out();
        const double begin = bench::now_s();
        stream(STW_READ);
        return bench::now_s() - begin;
    }

    [[nodiscard]] uint64_t bytes() const { return tensors_.size() * tensor_bytes_; }
    [[nodiscard]] uint64_t passes() const { return pass_; }

private:
    void all_out() { must(stw_evict(runtime_, nullptr, 0, STW_TIER_HOST, 0, 0), "stw_evict"); }

    void stream(uint32_t access)
    {
        std::deque<stw_operation *> asked;
        for (uint64_t next = 0, done = 0; done < tensors_.size(); ++done) {
            for (; next < tensors_.size() && next < done + ahead_; ++next)
                asked.push_back(ask(next, access));
            stw_view view = take(asked.front());
            asked.pop_front();
            visit(view, done, access);
            must(stw_release(&view, 1, STW_STREAM_HOST, 0), "stw_release");
        }
    }

    stw_operation *ask(uint64_t index, uint32_t access)
    {
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        const stw_fetch_request request = bench::request_of(tensors_[index], access, STW_TIER_HOST);
        stw_operation *operation = nullptr;
        must(stw_fetch_async(runtime_, &options, &request, 1, &operation), "stw_fetch_async");
        return operation;
    }

    static stw_view take(stw_operation *operation)
    {
        stw_status status = STW_PENDING;
        while (status == STW_PENDING) status = stw_operation_wait(operation, 1'000'000'000);
        must(status, "stw_operation_wait");
        stw_view view;
        must(stw_fetch_collect(operation, STW_STREAM_HOST, &view, 1), "stw_fetch_collect");
        must(stw_operation_free(operation), "stw_operation_free");
        return view;
    }

    // A wrong read must not pass for a fast one.
    void visit(const stw_view &view, uint64_t index, uint32_t access) const
    {
        for (uint64_t at = 0; at < view.bytes; at += kStampBytes) {
            auto *word = reinterpret_cast<uint64_t *>(static_cast<char *>(view.pointer) + at);
            const uint64_t stamp = (pass_ << 48) ^ (index << 24) ^ at;
            if (access == STW_WRITE)
                *word = stamp;
            else if (*word != stamp)
                bench::give_up("read other bytes than were written");
        }
    }

    stw_runtime *runtime_;
    uint64_t tensor_bytes_;
    uint64_t ahead_;
    uint64_t pass_ = 0;
    std::vector<stw_tensor *> tensors_;
};

void answer(const char *what, const Stream &stream, double seconds)
{
    std::printf("{\"what\": \"%s\", \"pass\": %" PRIu64 ", \"bytes\": %" PRIu64
                ", \"seconds\": %.9f}\n",
                what, stream.passes(), stream.bytes(), seconds);
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char **argv)
{
    const bench::Arguments arguments(argc, argv);
    const uint64_t bytes = arguments.number("bytes", uint64_t{2} << 30);
    const uint64_t tensor_bytes = arguments.number("tensor-bytes", uint64_t{32} << 20);
    bench::Budgets budgets;
    budgets.host_bytes = arguments.number("host-bytes", uint64_t{512} << 20);
    budgets.nvme_path = arguments.text("dir", ".");
    budgets.profile_path = arguments.text("profile", "");
    budgets.nvme_request_bytes = static_cast<uint32_t>(arguments.number("request-bytes", 0));
    budgets.nvme_queue_depth = static_cast<uint32_t>(arguments.number("queue-depth", 0));
    budgets.nvme_bytes = bytes + bytes / 16 + (uint64_t{64} << 20);
    stw_runtime *runtime = bench::open_runtime(budgets);
    {
        Stream stream(runtime, bytes, tensor_bytes, arguments.number("ahead", 6));
        std::string command;
        while (std::getline(std::cin, command) && command != "quit") {
            if (command == "write")
                answer("write", stream, stream.write());
            else if (command == "read")
                answer("read", stream, stream.read());
            else
                bench::give_up("no such command: " + command);
            must(stw_runtime_drain(runtime, 0), "stw_runtime_drain");
        }
    }
    bench::close_runtime(runtime);
    return 0;
}
