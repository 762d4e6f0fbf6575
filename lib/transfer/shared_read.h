// SPDX-License-Identifier: Apache-2.0
// Blocks that other processes of this host read as well, each from a disk of its own: where one has
// read such a block, the others take its bytes from memory. What the engine asks whoever knows the
// others; it never relies on the answers, and verifies what it is given as it does what it reads.
#pragma once

#include <cstdint>

namespace stepwell::transfer {

struct SharedKey {
    uint64_t block = 0;    // Job::shared_block
    uint64_t content = 0;  // what its bytes sum to
    uint64_t bytes = 0;
};

struct SharedRead {
    enum class Answer : uint8_t {
        kAlone,  // read it, for nobody else
        kRead,   // read it, then offer() it, or withdraw() where that failed
        kCopy,   // copy() it, or let_go()
        kLater,  // look again in a moment; never where may_wait was false
    };
    Answer answer = Answer::kAlone;
    uint32_t slot = 0;  // these two are the answerer's
    uint64_t serial = 0;
};

// On engine threads, several at once, no lock held. None waits for another process; copy and offer
// take as long as the bytes do. Not called any more once the engine's close was.
struct SharedReadHooks {
    void *user = nullptr;
    SharedRead (*look)(void *user, const SharedKey &key,
                       bool may_wait) = nullptr;  // null: no hooks
    // False: they are gone. They are let go in either case.
    bool (*copy)(void *user, const SharedRead &read, const SharedKey &key, void *data) = nullptr;
    void (*let_go)(void *user, const SharedRead &read) = nullptr;
    void (*offer)(void *user, const SharedRead &read, const SharedKey &key,
                  const void *data) = nullptr;
    void (*withdraw)(void *user, const SharedRead &read) = nullptr;
};

}  // namespace stepwell::transfer
