// SPDX-License-Identifier: Apache-2.0
// Blocks that every rank of this host stores a copy of, and that one of them reads for all: which
// they are, and who the engine asks about them.
#include "lib/runtime/ranks.h"
#include "lib/runtime/runtime.h"

namespace stepwell {
namespace {

using collective::BoardKey;
using collective::ReadBoard;
using collective::SharedReads;
using transfer::SharedKey;
using transfer::SharedRead;

SharedReads &reads_of(void *user)
{
    return *static_cast<SharedReads *>(user);
}

BoardKey key_of(const SharedKey &key)
{
    return {key.block, key.content, key.bytes};
}

SharedRead::Answer answer_of(ReadBoard::Answer answer)
{
    switch (answer) {
    case ReadBoard::Answer::kRead: return SharedRead::Answer::kRead;
    case ReadBoard::Answer::kCopy: return SharedRead::Answer::kCopy;
    case ReadBoard::Answer::kLater: return SharedRead::Answer::kLater;
    case ReadBoard::Answer::kAlone: break;
    }
    return SharedRead::Answer::kAlone;
}

ReadBoard::Found found_of(const SharedRead &read)
{
    const bool reads = read.answer == SharedRead::Answer::kRead;
    return {reads ? ReadBoard::Answer::kRead : ReadBoard::Answer::kCopy, read.slot, read.serial};
}

}  // namespace

void Runtime::share_reads(transfer::EngineOptions *engine)
{
    if (!ranks_.body) return;
    const std::string &remark = ranks_->node->board_remark();
    if (!remark.empty()) log_.print(STW_LOG_WARNING, "ranks", "%s", remark.c_str());
    ranks_->reads = SharedReads::open(*ranks_->node);
    if (!ranks_->reads) return;
    transfer::SharedReadHooks &hooks = engine->shared;
    hooks.user = ranks_->reads.get();
    hooks.look = [](void *user, const SharedKey &key, bool may_wait) {
        const ReadBoard::Found found = reads_of(user).look(key_of(key), may_wait);
        return SharedRead{answer_of(found.answer), found.slot, found.serial};
    };
    hooks.copy = [](void *user, const SharedRead &read, const SharedKey &key, void *data) {
        return reads_of(user).copy(found_of(read), key_of(key), data);
    };
    hooks.let_go = [](void *user, const SharedRead &read) {
        reads_of(user).let_go(found_of(read));
    };
    hooks.offer = [](void *user, const SharedRead &read, const SharedKey &key, const void *data) {
        reads_of(user).offer(found_of(read), key_of(key), data);
    };
    hooks.withdraw = [](void *user, const SharedRead &read) {
        reads_of(user).withdraw(found_of(read));
    };
}

// Under the lock. `copies`: what is the same for the tensor on all ranks that hold a copy of it; 0:
// it is not replicated, and what shares its blocks is not either.
void Runtime::note_copies(residency::TensorId tensor, uint64_t copies)
{
    PackAddresses &pack = pack_addresses_[core_.pack_of(tensor)];
    if (copies == 0) pack.own = true;
    if (pack.copies == 0) pack.copies = copies;
}

// 0: the block is this rank's own. Others that take it for the same one are found out by what its
// bytes sum to.
uint64_t Runtime::shared_block(const residency::Transfer &transfer) const
{
    if (!ranks_.body || !ranks_->reads || transfer.pack >= pack_addresses_.size()) return 0;
    const PackAddresses &pack = pack_addresses_[transfer.pack];
    return pack.own || pack.copies == 0 ? 0 : (pack.copies ^ transfer.pack_offset) | 1;
}

}  // namespace stepwell
