#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planted bugs: every one must be found by its judge, and the code as it is must pass.

Each mutant is one file of the library with one text replaced. The file is compiled in the build
folder, a header with all that includes it, and linked with the other objects of its judge: the
simulations for lib/residency, lib/gathering and lib/schedule, the unit tests of the engine for
lib/transfer, of the dispatcher for lib/runtime/dispatch and of the bound for lib/schedule, ranks
that commit and crash for generations in lib/store and lib/collective. The tree is never touched.
What was compiled before is used again as long as its text and all headers are the same.

With --turn only some are planted: those in files that differ from upstream (tests/of_the_day.py),
and a part of all by the day, so that TURNS days plant each of them. --turn DAY repeats a day's.
"""
import argparse
import concurrent.futures
import hashlib
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from of_the_day import TODAY, changed_files, turn  # noqa: E402

TURNS = 36
CHANGED_MAX = 4  # more mutants of changed files than these take turns too
PROGRAM_SEEDS = 2000
RANKS_SEEDS = 100
MANY_SEEDS = (1561, 300)  # the first and how many: a knot with an update comes once in 3000
TIMEOUT_S = 60
# Kernels for one set of instructions: what is planted in them is in all.
FLAGS = ["-std=c++20", "-O1", "-ffp-contract=off", "-Wno-unused", "-DHWY_COMPILE_ONLY_STATIC"]
# Parsed once for all sources: most of what it takes to compile one.
COMMON = ["algorithm", "array", "atomic", "chrono", "condition_variable", "cstring", "deque",
          "functional", "map", "memory", "mutex", "optional", "set", "string", "thread",
          "unordered_map", "utility", "vector", "gtest/gtest.h"]
SUPPORT = ["lib/support/assert.cpp", "lib/support/status.cpp"]


class Judge:
    """A program made of these sources: exit status 1 and a line that `found` knows is a catch."""

    def __init__(self, folder, sources, libraries, arguments, found, timeout_s=TIMEOUT_S):
        self.folder = folder  # of the mutants' files
        self.sources = sources  # patterns
        self.libraries = libraries
        self.arguments = arguments
        self.found = re.compile(found)
        self.timeout_s = timeout_s


def simulation(mode, seeds):
    return Judge("lib/residency",
                 ["lib/residency/*.cpp", "lib/gathering/*.cpp", "lib/schedule/*/*.cpp", *SUPPORT,
                  "tests/simulation/*.cpp"],
                 [], [mode, "1", str(seeds)], r"failed by (seed \d+ after \d+ events: .*)")


JUDGES = {
    "program": simulation("program", PROGRAM_SEEDS),
    "ranks": simulation("ranks", RANKS_SEEDS),
    "troubled": simulation("many", 100),
    # Many ranks with plans, faults and budgets that change: what the other two do not see.
    "many": Judge("lib/residency",
                  ["lib/residency/*.cpp", "lib/schedule/*/*.cpp", *SUPPORT, "tests/ranks/*.cpp"],
                  [], ["--first", str(MANY_SEEDS[0]), "--seeds", str(MANY_SEEDS[1])],
                  r"failed by (seed \d+ after \d+ events: .*)"),
    "engine": Judge("lib/transfer",
                    ["lib/transfer/*.cpp", "lib/memory/*.cpp", "lib/store/*.cpp",
                     "lib/observe/log.cpp", "lib/observe/nvtx.cpp", "lib/support/*.cpp",
                     "tests/unit/transfer/engine_faults_test.cpp"],
                    ["-lgtest_main", "-lgtest", "-ldl"], ["--gtest_brief=1"],
                    r"\[  FAILED  \] (\S+)"),
    # Lost wake-ups are runs without end, and the code as it is takes less than a second.
    "dispatcher": Judge("lib/runtime/dispatch",
                        ["lib/runtime/dispatch/dispatcher.cpp", "lib/runtime/dispatch/timer.cpp",
                         "lib/runtime/dispatch/waiter.cpp", "lib/residency/*.cpp",
                         "lib/observe/log.cpp", "lib/support/limits.cpp", *SUPPORT,
                         "tests/unit/runtime/dispatcher_test.cpp",
                         "tests/unit/runtime/dispatcher_stress_test.cpp"],
                        ["-lgtest_main", "-lgtest"],
                        ["--gtest_brief=1", "--gtest_fail_fast"],
                        r"\[  FAILED  \] (\S+)", timeout_s=8),
    "bound": Judge("lib/schedule/plan",
                   ["lib/residency/*.cpp", "lib/schedule/*/*.cpp", *SUPPORT,
                    "tests/unit/schedule/bound_test.cpp"],
                   ["-lgtest_main", "-lgtest", "-lgmock"], ["--gtest_brief=1"],
                   r"\[  FAILED  \] (\S+)"),
    # Claims that touches pass or see, and homes nearer than the farthest tier.
    "claims": Judge("lib/residency",
                    ["lib/residency/*.cpp", *SUPPORT, "tests/unit/residency/claims_test.cpp",
                     "tests/unit/residency/homes_test.cpp",
                     "tests/unit/residency/touches_test.cpp"],
                    ["-lgtest_main", "-lgtest", "-lgmock"], ["--gtest_brief=1"],
                    r"\[  FAILED  \] (\S+)"),
    "early": Judge("lib/update",
                   ["lib/update/*.cpp", "lib/update/kernels/*.cpp", "lib/observe/nvtx.cpp",
                    "lib/support/*.cpp", "tests/unit/optimizer/early_test.cpp",
                    "tests/unit/optimizer/fake_*.cpp"],
                   ["-lgtest_main", "-lgtest", "-lhwy", "-ldl"],
                   ["--gtest_brief=1", "--gtest_fail_fast"], r"\[  FAILED  \] (\S+)"),
    "generations": Judge("lib/store",
                         ["lib/store/*.cpp", "lib/collective/commit.cpp",
                          "lib/collective/agreement.cpp", *SUPPORT, "tests/generations/*.cpp"],
                         [], ["--ranks", "1", "8", "--seeds", "600"],
                         r"failed by (seed \d+: .*)"),
    "masters": Judge("lib/update",
                     ["lib/update/*.cpp", "lib/update/kernels/*.cpp", "lib/observe/nvtx.cpp",
                      "lib/support/*.cpp", "tests/unit/optimizer/master_parts_test.cpp",
                      "tests/unit/update/split_test.cpp", "tests/unit/optimizer/fake_*.cpp"],
                     ["-lgtest_main", "-lgtest", "-lhwy", "-ldl"],
                     ["--gtest_brief=1", "--gtest_filter=-*LosesNothingOfAnyMaster"],
                     r"\[  FAILED  \] (\S+)"),
}

# name, judge, file (with its path where that is not the judge's folder), text that occurs once,
# what stands there instead, why it is a bug; several texts of one file are a tuple
MUTANTS = [
    ("tie-with-a-carry", "masters", "lib/update/kernels/split.cpp",
     "below(d, lower, 0x8001)", "below(d, lower, 0x8000)",
     "a tie that was rounded down comes back one unit too small"),
    ("tie-of-either-kind", "masters", "lib/update/kernels/split.cpp",
     "(bits & 0x0001FFFF) == 0x00018000;", "(bits & 0x0000FFFF) == 0x00008000;",
     "a tie that was rounded down is marked as rounded up"),
    ("tie-below-infinity", "masters", "lib/update/kernels/split.cpp",
     "(bits >> 16 & 0x7FFF) > 0x7F80;", "(bits & 0x7FFFFFFF) > 0x7F800000;",
     "the largest finite tie is taken for a NaN"),
    ("nan-made-quiet", "masters", "lib/update/kernels/split.cpp",
     "hn::Or(tie, hn::RebindMask(u, hn::IsNaN(value)))", "tie",
     "a signalling NaN comes back quiet"),
    ("parts-of-the-step-before", "masters", "parameter_split.cpp",
     "    kernels::split_master(parts_of_it, master, work.count);\n", "",
     "the master is the new upper half beside the old lower one"),
    ("written-parameter-keeps-its-parts", "masters", "parameter_split.cpp",
     "    if (fresh.master || part.makes_master) {\n        kernels::convert(master",
     "    if (part.makes_master) {\n        kernels::convert(master",
     "a parameter that was written is joined with the lower half of its old master"),
    ("master-asked-for-after-a-write", "masters", "parameter_split.cpp",
     "    if (fresh.master) {\n        kernels::convert(master, STW_F32, values, STW_BF16, "
     "chunk.element_count);\n        return;\n    }\n", "",
     "the same where the program asks for the master"),
    ("average-of-the-stack", "masters", "parameter_split.cpp",
     "        std::memcpy(average_of(chunk) + begin, master, work.count * sizeof(float));\n", "",
     "the first average is of what its memory held"),
    ("bits-left-behind", "masters", "parameter_split.cpp",
     "uint64_t{1} << kLow | uint64_t{1} << kOpen", "uint64_t{1} << kLow",
     "bits of a master that is whole keep their room"),
    ("parts-back-with-each-chunk", "masters", "parameter_job.cpp",
     "if (i >= kOthers && block_is_through(shape.layouts[i], chunk, done[i]))",
     "if (i >= kOthers)",
     "a block of bits is written back once for each chunk"),
    # There is no dirty bit to forget: dirty is derived from which replicas are valid. These three
    # are what a forgotten bit would do, planted where it is derived and where it changes.
    ("evict-the-last-replica", "program", "evictions.cpp",
     "    const bool duplicate = packs_.is_duplicate(block, place);\n"
     "    const PlaceId to =",
     "    const bool duplicate = true;\n    const PlaceId to =",
     "a dirty block leaves without a write-back"),
    ("others-not-stale", "program", "fetch_runner.cpp",
     "if (other != target.place) occupancy_.drop(target.block, other, out);",
     "(void)other;",
     "a write leaves older replicas valid"),
    ("failed-transfer-is-good", "program", "core.cpp",
     "settle_target(flight, status.ok(), out);",
     "settle_target(flight, true, out);",
     "a read that failed fills the replica with what is not the bytes"),
    ("missed-is-read", "program", "tensor_locks.cpp",
     "        if (!tensor.cause.ok()) return tensor.cause;\n",
     "        if (tensor.contents == Contents::kFailed) return tensor.cause;\n",
     "what an update missed is read as if the update had been"),
    ("missed-behind-the-gate", "program", "gates.cpp",
     "tensor.contents == Contents::kValid && tensor.cause.ok() &&",
     "tensor.contents == Contents::kValid &&",
     "what an update missed is read past the core"),
    ("view-without-pin", "program", "gates.cpp",
     "    if (here.pins > 0) return true;\n    if (places_.is_nvme(place)) return false;",
     "    if (places_.is_nvme(place)) return false;",
     "the pins of a view do not count when something has to move"),
    ("dropped-pin", "program", "fetch_runner.cpp",
     "            ++blocks_.replica(block, place).pins;\n",
     "",
     "a view that is not in a gate pins nothing"),
    ("writer-beside-reader", "program", "tensor_locks.cpp",
     "    if (is_alone(fetch, request) && tensor.readers > 0 && !beside_readers(fetch)) return "
     "true;\n",
     "",
     "a writer is let in beside readers"),
    ("reader-beside-writer", "program", "tensor_locks.cpp",
     "    if (waits_for_claim(fetch, tensor, writes) || tensor.writer) return true;\n",
     "    if (waits_for_claim(fetch, tensor, writes)) return true;\n",
     "a reader is let in beside a writer"),
    ("writer-beside-a-commit", "program", "tensor_table.cpp",
     "    return writes ? !claims.empty() : std::any_of(claims.begin(), claims.end(), "
     "is_exclusive);\n",
     "    return std::any_of(claims.begin(), claims.end(), is_exclusive);\n",
     "a claim that only reads lets writers in"),
    ("commit-beside-a-writer", "program", "tensor_locks.cpp",
     "    if (waits_for_claim(fetch, tensor, writes) || tensor.writer) return true;\n",
     "    if (waits_for_claim(fetch, tensor, writes) || (tensor.writer && claim == 0)) return "
     "true;\n",
     "a fetch under a claim does not wait for a writer"),
    ("readers-before-an-update", "program", "tensor_table.cpp",
     "    return writes ? !claims.empty() : std::any_of(claims.begin(), claims.end(), "
     "is_exclusive);\n",
     "    return writes ? !claims.empty() : is_exclusive(claim());\n",
     "a reader passes an update that waits for a commit, and reads what was before it"),
    ("readers-behind-a-commit", "program", "tensor_table.cpp",
     "    return writes ? !claims.empty() : std::any_of(claims.begin(), claims.end(), "
     "is_exclusive);\n",
     "    return !claims.empty();\n",
     "a reader waits for a claim that only reads"),
    ("slot-freed-under-transfer", "program", "occupancy.cpp",
     "    if (here.reads > 0 || here.filling) {\n        here.doomed = true;",
     "    if (here.filling) {\n        here.doomed = true;",
     "the slot is used again while a transfer still reads it"),
    ("older-slot-lost", "program", "occupancy.cpp",
     "    out.forgets.push_back({id, heir});\n",
     "    out.forgets.push_back({id, kNone});\n",
     "the slot with the older contents of a tensor is reused"),
    ("older-kept-again", "program", "occupancy.cpp",
     "    if (kept.slot != kNoSlot) return;\n",
     "    if (kept.slot != kNoSlot) drop(heir, nvme, out);\n    if (!stored.valid) return;\n",
     "a second write replaces older contents by those of the first"),
    ("older-and-empty", "program", "occupancy.cpp",
     "    packs_.set_contents(older, Contents::kValid);\n",
     "",
     "a tensor with older contents counts as empty"),
    ("older-for-ever", "program", "core.cpp",
     "    if (held) tensor.older = kNone;\n",
     "",
     "the next claim's writes leave older contents too, where nobody expects them"),
    ("early-with-another-scale", "early", "parameter_early.cpp",
     "    if (step->scale != early_scale) return false;\n",
     "",
     "an update without the clip stands although the clip was reached"),
    ("early-with-other-hyper-parameters", "early", "parameter_early.cpp",
     "sizeof part->hyper) == 0;",
     "sizeof part->hyper.struct_size) == 0;",
     "an update stands that was made with other hyper-parameters than its verdict's step has"),
    ("early-and-again", "early", "step.cpp",
     "    job.undoes = was_early;\n",
     "    job.undoes = false;\n",
     "the second update begins from what the first one made"),
    ("early-without-copies", "early", "parameter_early.cpp",
     "    return undoes || (phase == StepPhase::kEarly && (copies >> tensor & 1) != 0);\n",
     "    return undoes;\n",
     "what is not kept at nvme is not copied either"),
    ("early-though-skipped", "early", "step.cpp",
     "    if (!step.gives_back && was_early && job.judged_alike()) {",
     "    if (was_early && job.judged_alike()) {",
     "an early update stands in a step that is skipped"),
    ("early-makes-its-states", "early", "parameter_early.cpp",
     "        keeps = tiers.contents(turns[i].tensor) == Contents::kValid;\n",
     "",
     "states that the update makes are set back to what was there before: nothing"),
    ("restored-and-stale", "early", "parameter_early.cpp",
     "    if (error.ok()) {\n        note_versions();\n",
     "    if (error.ok()) {\n",
     "a master that was set back is made anew from its parameter"),
    ("older-not-emptied", "early", "parameter_job.cpp",
     "        emptied |= uint64_t{1} << n;\n",
     "",
     "older contents stay behind the verdict"),
    ("early-not-counted", "early", "parameter_early.cpp",
     "        ++count;\n",
     "",
     "an update that stands does not count for the bias correction"),
    ("early-out-of-the-norm", "early", "optimizer_parts.h",
     "    return phase == StepPhase::kVerdict || phase == StepPhase::kKeep ||\n"
     "           phase == StepPhase::kEarly || phase == StepPhase::kUpdated;",
     "    return phase == StepPhase::kVerdict || phase == StepPhase::kKeep ||\n"
     "           phase == StepPhase::kEarly;",
     "gradients of early updates that are through are left out of the norm"),
    ("part-of-the-room", "program", "reservation.cpp",
     "    if (arena.free(whole) >= needed) return Room::kTaken;\n    while",
     "    if (arena.free(whole) + 1 >= needed) return Room::kTaken;\n    while",
     "a fetch goes on with one block less than it needs"),
    ("over-the-new-budget", "program", "core.cpp",
     "    return arena.too_many();\n",
     "    return arena.too_many() / 2;\n",
     "a shrink ends while more is there than the new budget"),
    ("runs-at-nvme", "program", "run_planner.cpp",
     "places_[first->place].maps || places_.is_nvme(first->place) || first->home;",
     "places_[first->place].maps || first->home;",
     "what a commit wants at nvme is to lie there in a row, where slots have no numbers"),
    ("maps-what-another-took", "program", "transfer_table.cpp",
     "    if (!addresses_.guards(transfer.block, transfer.to))\n"
     "        places_.arena(transfer.to).note_away(transfer.to_slot);\n",
     "",
     "a slot whose new block could not be mapped counts as being at the old one's address"),
    ("last-slot-of-the-dead", "program", "block_table.cpp",
     "            replica(first + i, place).last_slot = kNoSlot;"
     "  // of an address that is no more\n",
     "",
     "a new tensor takes a slot for mapped that lies at a destroyed one's address"),
    ("bare-but-mapped", "program", "arena.cpp",
     "    note_home(slot);\n",
     "",
     "a slot that lost its memory counts as being at its block's address still"),
    ("gathered-before-its-verdict", "ranks", "lib/gathering/ledger.cpp",
     "if (whole.undecided) {", "if (false) {",
     "a gather waits for the verdict of an update, which is queued behind it"),
    ("gathered-ahead-of-its-verdict", "ranks", "lib/gathering/ledger.cpp",
     "&& !wholes_[next.whole].undecided)", ")",
     "likewise, and no program asked for it"),
    ("absence-forgotten", "ranks", "lib/gathering/agreed.cpp",
     "    if (partial_[whole]) ledger_.leave_last(whole);\n",
     "",
     "a whole that one rank has not stays there for all, and the next fetch gathers nothing"),
    ("absent-and-unaware", "ranks", "lib/gathering/agreed.cpp",
     "    hollow_[whole] = absent;\n",
     "",
     "a rank that was absent takes its whole for gathered"),
    ("absent-from-the-failure", "troubled", "lib/gathering/agreed.cpp",
     "        failed_[whole] = status;\n",
     "",
     "a rank that was absent does not hear that the collective failed, and decides otherwise"),
    ("lent-after-the-claim", "program", "core.cpp",
     "    if (held) tensor.stage = ClaimStage::kNext;\n",
     "",
     "what a claim has lent is read under the next claim"),
    ("lent-to-writers", "program", "tensor_locks.cpp",
     "        return writes || (fetch.asked.flags & kFetchLent) == 0 ||\n",
     "        return (fetch.asked.flags & kFetchLent) == 0 ||\n",
     "what a claim has lent is written by others"),
    ("two-slots-one-memory", "program", "arena.cpp",
     "    return bare_one(slots_);\n",
     "    return kNoSlot;\n",
     "a slot gets memory and none gives any: the place holds more than its budget"),
    ("promise-forgotten", "program", "promises.cpp",
     "    if (blocks >= needed) return {};\n",
     "    if (blocks + 1 >= needed) return {};\n",
     "a place shrinks below what it has promised"),
    ("home-slot-given-away", "program", "pack_table.cpp",
     "        if (other != place && (there.valid || there.filling) && !there.doomed) "
     "return true;\n",
     "",
     "the slot at home goes to others while the bytes are elsewhere, and they cannot return"),
    ("visit-without-a-home", "program", "fetch_runner.cpp",
     "            if (!packs_.is_guest(pack, target.place)) continue;\n",
     "            if (pack.first != kNone) continue;\n",
     "bytes are written elsewhere before their home has a slot for them"),
    ("home-is-left", "program", "victims.cpp",
     "    if (here.doomed || here.evicting || pack.agreed || packs_.never_leaves(block, place))\n",
     "    if (here.doomed || here.evicting || pack.agreed || pack.pinned_home == place)\n",
     "blocks leave the only place that keeps room for them, and others cannot"),
    ("gate-left-open", "program", "gates.cpp",
     "    if (!uses_gates(pack, place)) return true;\n",
     "    if (place < places_.count()) return true;\n",
     "eviction leaves the gate open, so a hit reads freed room"),
    ("zeros-while-moving", "program", "fills.cpp",
     "        if (blocks_.bytes_exist(target.block, target.tried)) return;\n",
     "",
     "a block whose only bytes are being relocated is filled with zeros"),
    ("part-written-rest-not-read", "program", "fetch_runner.cpp",
     "            target.needs_bytes = !whole_write || (!covers && !is_hint(fetch));\n",
     "            target.needs_bytes = !whole_write;\n",
     "a write of part of a block loses the rest of it"),
    ("coming-is-refused", "program", "fetch_runner.cpp",
     "    if (room == Room::kComing && !tries) return false;\n",
     "",
     "a fetch is refused though the room that it waits for is on its way"),
    ("undo-keeps-the-hold", "program", "fetch_runner.cpp",
     "            blocks_.let_go(target.block, target.place);\n",
     "",
     "a cancelled fetch keeps its room for ever"),
    ("neighbour-dropped", "program", "lifetimes.cpp",
     "    if (pack.with_contents > 0 || pack.writing > own) {\n",
     "    if (pack.with_contents > 0) {\n",
     "a discard takes the block from under a neighbour that is being written"),
    ("deadlock-not-found", "program", "deadlocks.cpp",
     "    return std::get<FetchId>(chosen);\n",
     "    return std::get<FetchId>(chosen) & 0;\n",
     "threads that wait for each other's views wait for ever"),
    ("awake-is-asleep", "program", "deadlocks.cpp",
     "        if (blocks_.replica(block, place).holds > 0 || gates_.is_pinned(block, place)) "
     "return true;\n",
     "",
     "a fetch gives way although a thread that is awake could release the room"),
    ("score-without-rank", "program", "victim_order.cpp",
     "        unrank(id, place);\n        packs_[id].score[place] = highest;\n",
     "        packs_[id].score[place] = highest;\n",
     "a pack stands twice in the order in which a place is left"),
    ("score-beats-a-hold", "program", "victims.cpp",
     "            if (may_leave(first + index - 1, place, &fetch)) return",
     "            if (blocks_.replica(first + index - 1, place).slot != kNoSlot) return",
     "a low score chooses what cannot leave, and a fetch that fits is refused"),
    ("hint-in-the-way", "program", "lifetimes.cpp",
     "Status Lifetimes::may_destroy(TensorId id, Commands &out)\n{\n    drop_hints(id, out);\n",
     "Status Lifetimes::may_destroy(TensorId id, Commands &out)\n{\n    (void)out;\n",
     "a prefetch that nobody waits for keeps a tensor from being destroyed"),
    ("unlisted-is-counted", "program", "recency.cpp",
     "    --listed_[place][packs_[blocks_[block].pack].agreed];\n",
     "",
     "what left a place counts as there when it is asked whether all is pinned"),
    ("asleep-with-another-policy", "program", "lifetimes.cpp",
     "    recency_.wake_all();\n    promises_.give_back(pack, tensor.pack);\n"
     "    const PackKey before",
     "    promises_.give_back(pack, tensor.pack);\n    const PackKey before",
     "blocks stay where they are although their policy lets them leave by now"),
    ("pinned-homes-are-views", "program", "reservation.cpp",
     "        static_cast<void>(outlook_.pinned_blocks(place, whole, &fetch));"
     "  // sees those in gates\n",
     "        if (outlook_.pinned_blocks(place, whole, &fetch) > 0)\n"
     "            return RoomOutlook::fall_short(fetch, place, Room::kStuck);\n",
     "a fetch waits for what rests where it is pinned, which nobody gives back"),
    ("waste-forgotten", "program", "occupancy.cpp",
     "    note_waste(id, place);\n",
     "",
     "a block that a plan brought for nothing counts as neither used nor wasted"),
    ("timing-decides-a-gather", "ranks", "lib/gathering/agreed.cpp",
     "    WholeDecision decision = ledger_.fetch(wholes, access);\n",
     "    if (running_.empty() && !wholes.empty()) {\n"
     "        bool dropped = false;\n"
     "        const Status status = ledger_.write(wholes[0], dropped);\n"
     "        if (status.ok() && dropped) drop(wholes[0], out);\n"
     "    }\n"
     "    WholeDecision decision = ledger_.fetch(wholes, access);\n",
     "a whole is gathered again when no collective happens to be running"),
    ("update-overtakes-a-gather", "ranks", "lib/gathering/agreed.cpp",
     ("    core_.claim_tensor(bucket.claim, tensors_[whole].shard);\n",
      "    asked.claim = queue_.front().claim;\n"),
     ("",
      "    for (const WholeId whole : queue_.front().wholes) {\n"
      "        core_.claim_tensor(queue_.front().claim, tensors_[whole].shard);\n"
      "    }\n"
      "    asked.claim = queue_.front().claim;\n"),
     "an update that was called later changes the shard before it is gathered, on some ranks"),
    ("failed-gather-is-granted", "troubled", "lib/gathering/agreed.cpp",
     ("        if (!status.ok() && !leaves) core_.fail(tensors.whole, status);\n",
      "[this](WholeId whole) { return !failed_[whole].ok(); }"),
     ("        if (!status.ok() && !leaves) core_.mark_valid(tensors.whole);\n",
      "[](WholeId) { return false; }"),
     "a whole that could not be gathered is shown with whatever its memory held"),
    ("hint-stays-in-flight", "many", "lib/schedule/lookahead/flights.cpp",
     "    by_fetch_.erase(found);\n",
     "",
     "a plan counts what is over as under way, and asks for less and less"),
    ("undecided-is-refused", "many", "room_outlook.cpp",
     "wanted <= places_.budget_before(place))\n            return true;",
     "wanted <= places_.budget_before(place))\n            return false;",
     "a fetch is refused by a budget that is not decided yet, and may be taken back"),
    ("one-of-them-is-told", "many", "core.cpp",
     "            if (tensors_[at].contents != Contents::kEmpty) out.errors",
     "            if (out.errors.empty() && tensors_[at].contents != Contents::kEmpty) out.errors",
     "of the tensors that share a block whose write failed, one hears of it"),
    # What is seen without a view: in addresses.cpp, and where blocks leave.
    ("seen-under-an-update", "program", "addresses.cpp",
     "            if (here.is_mapped() && !used) hide(block, place);\n",
     "            static_cast<void>(used);\n",
     "what an update is about to change is read as it was"),
    ("written-without-a-writer", "program", "addresses.cpp",
     "    if (aliases_->show(place, here.slot, blocks_[block].pack, blocks_[block].index, "
     "false))\n",
     "    if (here.valid)\n",
     "what is written after the view went is lost when its block leaves"),
    ("seen-though-missed", "program", "addresses.cpp",
     "    if (pack.shared || (!tensor.bars(0, false) && readable)) return;\n",
     "    static_cast<void>(readable);\n    if (pack.shared || !tensor.bars(0, false)) return;\n",
     "a write of a part lets what an update missed be read"),
    ("touch-waits-for-what-it-sees", "program", "fetch_runner.cpp",
     "    if (addresses_.shows_touched(fetch)) {\n", "    if (false) {\n",
     "a thread that reads an array waits for the view that ends with the array"),
    ("slot-at-an-address", "program", "addresses.cpp",
     "    aliases_->hide(place, slot);\n    places_.arena(place).note_home(slot);\n",
     "    places_.arena(place).note_home(slot);\n",
     "a guarded block is brought to a slot whose memory is at another block's address"),
    ("away-for-certain-alone", "program", "transfer_table.cpp",
     "places_.arena(transfer.to).note_away(transfer.to_slot);\n",
     "places_.arena(transfer.to).note_home(transfer.to_slot);\n",
     "a slot counts as at home while the end of its move to an address is not known"),
    ("open-block-of-another-key", "program", "lifetimes.cpp",
     "    packs_.close(before, tensor.pack);\n",
     "    packs_.close(pack.key, tensor.pack);\n",
     "a block whose tensor changed its policy takes more of the policy before"),
    ("refused-and-writable", "program", "fetch_runner.cpp",
     "            if (target.writes) addresses_.protect(target.block, target.place);\n",
     "",
     "a fetch that found no mapping leaves those before writable"),
    ("seen-in-a-free-slot", "program", "occupancy.cpp",
     ("    recency_.unlist(id, place);\n    addresses_.hide(id, place);\n",
      "    if (here.reads == 0 && !here.filling && here.pins == 0) "
      "addresses_.hide(id, place);\n"),
     ("    recency_.unlist(id, place);\n", ""),
     "a block that left is seen, or whatever comes to its slot"),
    ("gate-without-sight", "program", "gates.cpp",
     "        if (addresses_.guards(first + index, place) && !here.is_mapped()) return false;\n",
     "",
     "a hit finds the gate of what is in the arena open, and faults"),
    ("shown-under-a-transfer", "program", "fills.cpp",
     "        return here.is_mapped() == target.moves || blocks_[target.block].transfers == 0;\n",
     "        return true;\n",
     "a block moves to its address while a transfer reads it in the arena"),
    ("ordered-copy-ends-anew", "program", "core.cpp",
     "    if (!flight.ordered) occupancy_.settle_target(flight, status.ok(), out);\n",
     "    occupancy_.settle_target(flight, status.ok(), out);\n",
     "the end of a copy that was used already brings back what left meanwhile"),
    ("write-beside-a-copy", "program", "fills.cpp",
     "    if (target.writes && blocks_[target.block].transfers > 0) return false;\n",
     "",
     "a block is written while a copy of it is still under way"),
    ("failed-early-write-untold", "many", "core.cpp",
     "!status.ok() && flight.writes_back && flight.epoch == block.epoch",
     "!status.ok() && flight.evicts && flight.epoch == block.epoch",
     "an early write-back fails, and nobody hears of it"),
    ("update-moves-on-paper", "many", "deadlocks.cpp",
     "    return kind_of(claim) != ClaimKind::kUpdate || updates_tied == 0 ||\n"
     "           updates_tied != knot.updates_waiting;",
     "    return true;",
     "a thread and an update that wait for each other wait for ever"),
    ("short-read-is-whole", "engine", "storage_thread.cpp",
     "result == static_cast<int64_t>(request.bytes)) {",
     "result == static_cast<int64_t>(request.bytes) || (request.reads && result > 0)) {",
     "a short read is taken for a whole one"),
    ("short-write-is-whole", "engine", "storage_thread.cpp",
     "result == static_cast<int64_t>(request.bytes)) {",
     "result == static_cast<int64_t>(request.bytes) || (!request.reads && result > 0)) {",
     "a short write is taken for a whole one"),
    ("plan-without-rank", "program", "victim_order.cpp",
     "        auto found = ranked_[place].extract(rank_of(id, place));\n"
     "        pack.worth[place] = worth;\n",
     "        pack.worth[place] = worth;\n"
     "        auto found = ranked_[place].extract(rank_of(id, place));\n",
     "what a plan is asked anew stands where it stood"),
    ("plan-beats-a-hold", "program", "victims.cpp",
     "            if (!may_leave(block, place, &fetch)) continue;\n"
     "            if (write_back_worth",
     "            if (blocks_.replica(block, place).slot == kNoSlot) continue;\n"
     "            if (write_back_worth",
     "what is worth least is chosen though it cannot leave, and a fetch that fits is refused"),
    ("bound-forgets-a-block", "bound", "bound.cpp",
     "            const uint64_t comes = reads_ > there ? reads_ - there : 0;\n",
     "            const uint64_t comes = reads_ >= there ? reads_ - there + 1 : 0;\n",
     "the bound is above what the best schedule reads"),
    ("bound-counts-the-dead", "bound", "bound.cpp",
     "    if (dies(event)) dirty_ -= seen.dirty;\n",
     "",
     "what is discarded counts as written back"),
    ("bound-reads-what-it-writes", "bound", "bound.cpp",
     "    const bool first = seen.part == SIZE_MAX;\n",
     "    const bool first = true;\n",
     "a tensor that is used twice is read twice"),
    ("bound-starts-empty", "bound", "bound.cpp",
     "        const uint64_t there = i == 0 && start_ == Start::kCold ? 0 : capacity_ - held_;\n",
     "        const uint64_t there = start_ == Start::kCold ? 0 : capacity_ - held_;\n",
     "each part of a cold step begins with nothing there"),
    ("bound-gives-up-what-ends-first", "bound", "fewest.cpp",
     "        const auto last = std::prev(staying_.end());\n",
     "        const auto last = staying_.begin();\n",
     "a choice of what stays that is not the best one is taken for a bound"),
    ("bound-holds-the-dirty-twice", "bound", "fewest.cpp",
     "    if (!state.dirty && !std::exchange(state.held, true)) {\n",
     "    if (!std::exchange(state.held, true)) {\n",
     "what is read while it is dirty takes its room twice, and others must leave for it"),
    ("bound-writes-back-the-dead", "bound", "fewest.cpp",
     "    if (!dies(event)) return;\n    end_dirty(state, specs_[event.tensor].bytes, at);\n",
     "    if (!dies(event)) return;\n",
     "what is dead has to stay or to be written back until it is written anew"),
    ("manifest-before-blocks", "generations", "generations.cpp",
     "    Status status = store_.flush();\n",
     "    Status status;\n",
     "the manifest says of blocks that they are there before they are"),
    ("vote-before-manifest", "generations", "generations.cpp",
     "    if (status.ok()) status = flush();\n    if (status.code()",
     "    if (status.code()",
     "a rank says yes before its manifest is on the disk"),
    ("dropped-before-vote", "generations", "generations.cpp",
     "    attempt_ = info_of(manifest);\n    return {};\n",
     "    attempt_ = info_of(manifest);\n"
     "    if (infos_.size() >= kept_) drop_oldest();\n    return {};\n",
     "what is kept goes before all ranks have said that the next one is there"),
    ("newest-of-a-rank", "generations", "generations.cpp",
     "        if (common && ids.size() < kept) ids.push_back(id);",
     "        if ((common || true) && ids.size() < kept) ids.push_back(id);",
     "what one rank has found is resumed, not what all have"),
    ("kept-slot-written-over", "generations", "store.cpp",
     "    if (own != kNowhere && slots_[own].kept == 0) return own;",
     "    if (own != kNowhere) return own;",
     "a block is written over that a generation has"),
    ("forgotten-slot-is-free", "generations", "store.cpp",
     "    if (slots_[at].is_free()) give_back(at);",
     "    if (slots_[at].block == residency::kNone && slots_[at].users == 0) give_back(at);",
     "a block that the program gave up is given out while a generation has it"),
    ("refused-and-not-erased", "generations", "generations.cpp",
     "    if (attempt_written_) {",
     "    if (false) {",
     "what was voted down is found again when its slots are others'"),
    ("erased-and-not-flushed", "generations", "generations.cpp",
     "    STW_TRY(flush());\n    for (const uint32_t region : regions) regions_",
     "    for (const uint32_t region : regions) regions_",
     "slots are free before the manifest that names them is gone for sure"),
    ("doubt-is-no", "generations", "lib/collective/commit.cpp",
     "    if (prepared_ && !heard) {",
     "    if (false) {",
     "a rank that has not heard the vote erases what others may have committed"),
    ("newer-stays", "generations", "generations.cpp",
     "    STW_TRY(erase(newer));\n",
     "",
     "what was not resumed is found at the next reopening, though its slots are others'"),
    ("dropped-is-found", "generations", "generations.cpp",
     "        if (common && ids.size() < kept) ids.push_back(id);",
     "        if (common) ids.push_back(id);",
     "an older generation is resumed whose slots were given out"),
    ("restored-slots-are-free", "generations", "generations.cpp",
     "            STW_TRY(store_.load(block, region));\n",
     "            if (kept == id) STW_TRY(store_.load(block, region));\n",
     "the older generations that are kept lose their slots at a reopening"),
    ("sum-of-the-new-number", "generations", "store.cpp",
     "    place.sealed_as = slot.sealed_as;",
     "    place.sealed_as = slot.block;",
     "a block that was found again is verified as if it had been written under its new number"),
    # The loop that carries out commands, wherever there is a core.
    ("forgets-nothing", "program", "command_loop.cpp",
     "    for (const Forget &forget : round.forgets) sink_.forget(forget);\n",
     "",
     "what is no longer at nvme keeps its slot there"),
    ("forgets-late", "many", "command_loop.cpp",
     ("    for (const Forget &forget : round.forgets) sink_.forget(forget);\n",
      "    for (const TransferId transfer : round.promotes) sink_.promote(transfer);\n"),
     ("",
      "    for (const TransferId transfer : round.promotes) sink_.promote(transfer);\n"
      "    for (const Forget &forget : round.forgets) sink_.forget(forget);\n"),
     "a slot at nvme is given back after the transfer that was to have it"),
    ("memory-after-its-use", "program", "command_loop.cpp",
     ("    if (!round.swaps.empty()) sink_.swap_memory(round.swaps);\n",
      "    answer(round);\n"),
     ("",
      "    if (!round.swaps.empty()) sink_.swap_memory(round.swaps);\n    answer(round);\n"),
     "a transfer writes to a slot whose memory comes later"),
    ("packs-live-on", "program", "command_loop.cpp",
     "    for (const PackId pack : round.freed_packs) sink_.pack_freed(pack);\n",
     "",
     "the next pack of the number has the addresses of the one before"),
    ("promoted-before-begun", "program", "command_loop.cpp",
     ("    for (const TransferId transfer : round.promotes) sink_.promote(transfer);\n",
      "    for (const Forget &forget : round.forgets) sink_.forget(forget);\n"),
     ("",
      "    for (const TransferId transfer : round.promotes) sink_.promote(transfer);\n"
      "    for (const Forget &forget : round.forgets) sink_.forget(forget);\n"),
     "a transfer is urgent before it is in a queue"),
    ("one-round-alone", "ranks", "command_loop.cpp",
     "    } while (!out.empty());\n",
     "    } while (false);\n",
     "what follows from an answer waits for the next event"),
    ("round-done-twice", "ranks", "command_loop.cpp",
     "        round_.clear();\n        for",
     "        for",
     "commands of a round are carried out again with those of the next"),
    ("rounds-in-rounds", "ranks", "command_loop.cpp",
     "    if (runs_) return;\n",
     "",
     "an answer that asks for more carries that out in the middle of its round"),
    ("answered-once", "program", "command_loop.cpp",
     "            if (hook->granted(granted, out)) break;\n        }\n",
     "            if (hook->granted(granted, out)) break;\n        }\n        break;\n",
     "of several grants at once one is told"),
    ("refusals-unheard", "program", "command_loop.cpp",
     "            if (hook->refused(refused, out)) break;\n",
     "            static_cast<void>(refused);\n            break;\n",
     "who is refused waits for ever"),
    ("first-hook-alone", "ranks", "command_loop.cpp",
     "            if (hook->granted(granted, out)) break;\n",
     "            hook->granted(granted, out);\n            break;\n",
     "an answer that was not for the first hook is lost"),
    ("answer-for-all-hooks", "ranks", "command_loop.cpp",
     "            if (hook->granted(granted, out)) break;\n",
     "            hook->granted(granted, out);\n",
     "an answer is taken by one and told to the others as well"),
    ("round-unheard", "ranks", "command_loop.cpp",
     "        for (EventHook *hook : hooks_) hook->after_round(sink_.now(), out);\n",
     "",
     "gathers whose memory is there never start"),
    ("errors-unheard", "many", "command_loop.cpp",
     "    for (const BackgroundError &error : round.errors) sink_.failed(error);\n",
     "",
     "nobody hears of a write that failed in the background"),
    # Touches that pass claims, and the room of tensors at home nearer.
    ("lent-once-is-lent-for-good", "claims", "core.cpp",
     "    if (tensors_[id].stage == ClaimStage::kLent) tensors_[id].stage = before;\n",
     "    static_cast<void>(before);\n",
     "what was lent for one touch is read by later ones while its update writes"),
    ("ahead-of-what-has-begun", "claims", "tensor_locks.cpp",
     "    case ClaimStage::kBegun: return true;\n",
     "    case ClaimStage::kBegun: return (fetch.asked.flags & kFetchAhead) == 0;\n",
     "a touch writes while the update that waited for its thread's view writes"),
    ("touches-keep-it-shown", "claims", "addresses.h",
     "const uint32_t others = tensor.passed ? 0 : tensor.touched;\n",
     "const uint32_t others = 0;\n",
     "a thread reads at an address what a step that has returned is about to change"),
    ("touch-bars-whom-it-waits-for", "claims", "reservation.cpp",
     "beside_readers(fetch) && result == Room::kStuck;\n", "false;\n",
     "who has the views that a touch waits for cannot fetch what there is room for"),
    ("touches-pass-touches", "claims", "model.h",
     "        return to_all[place] || (to_touches[place] && beside_readers(fetch));\n",
     "        return to_all[place] || (to_touches[place] && fetch.targets.empty());\n",
     "small tensors that are touched keep a large one that was touched waiting"),
    ("written-where-it-is-read", "claims", "addresses.cpp",
     "(mapped == Mapped::kReadable && !writable);\n", "mapped == Mapped::kReadable;\n",
     "a write faults for as long as somebody else reads its block"),
    ("a-view-hides-transfers", "claims", "addresses.cpp",
     "const bool stays = !viewed || here.holds > 0 || here.reads > 0 || here.filling;\n",
     "const bool stays = !viewed;\n",
     "a thread whose view has ended beside a transfer reads old bytes at the address"),
    ("shown-as-it-comes", "claims", "fetch_runner.cpp",
     "fetch.last_claim != 0 && !locks_.was_claimed_since(fetch);\n",
     "fetch.last_claim != 0 || locks_.was_claimed_since(fetch);\n",
     "what was on its way for a touch is shown though a step has claimed it meanwhile"),
    ("touches-wait-for-no-verdict", "claims", "tensor_locks.cpp",
     "               (beside_readers(fetch) && tensor.holds_touches);\n",
     "               false;\n",
     "a touch reads an early update whose verdict was asked for, and may be to set it back"),
    ("guests-take-what-is-promised", "claims", "reservation.cpp",
     "    if (there + coming <= room) return Room::kTaken;\n",
     "    if (there + coming <= places_.arena(place).budget()) return Room::kTaken;\n",
     "views of tensors at home elsewhere keep a tensor from the room that it was promised"),
    ("farther-than-promised", "claims", "promises.cpp",
     "    if (!farthest || left(place) < uint64_t{promised_blocks(pack, place)} + kept) "
     "return false;\n",
     "    if (!farthest || kept > left(place)) return false;\n",
     "a tensor goes to a tier that has room for a part of it"),
    # The dispatcher: the order of an event, wake-ups, the timer and interrupts.
    ("answer-wakes-nobody", "dispatcher", "dispatcher.cpp",
     "        waiter.cv.notify_all();\n",
     "",
     "a fetch is answered and its thread goes on sleeping"),
    ("progress-wakes-nobody", "dispatcher", "dispatcher.cpp",
     "    progress_.notify_all();\n",
     "",
     "progress is counted, and threads that wait for it go on sleeping"),
    ("timer-sleeps-on", "dispatcher", "timer.cpp",
     "    timer_target_ = deadline;\n    add_one(timer_fd_);\n",
     "    timer_target_ = deadline;\n",
     "the timer misses an instant that is earlier than its next one"),
    ("stop-wakes-nobody", "dispatcher", "timer.cpp",
     "    add_one(timer_fd_);\n    timer_.join();\n",
     "    timer_.join();\n",
     "a close waits until the next deadline, and there may be none"),
    ("due-is-not-asked", "dispatcher", "timer.cpp",
     "            for (const DispatchHook *hook : hooks_) "
     "target = std::min(target, hook->due());\n",
     "",
     "a hook with a due time is not called at it"),
    ("timer-refuses-nobody", "dispatcher", "timer.cpp",
     "            core.tick(now(), out);\n",
     "            static_cast<void>(out);\n",
     "a fetch waits beyond its deadline"),
    ("timer-skips-its-hooks", "dispatcher", "timer.cpp",
     "        for (DispatchHook *hook : hooks_) hook->on_timer(now());\n",
     "",
     "the timer does not call hooks without the lock"),
    ("interrupt-is-not-kept", "dispatcher", "timer.cpp",
     "    interrupted_at_ = std::max(interrupted_at_, interrupted);\n",
     "",
     "waits that are not fetches are not ended by an interrupt"),
    ("interrupt-ends-all", "dispatcher", "timer.cpp",
     "        if (waiter->begin <= interrupted) fetches.push_back(fetch);\n",
     "        fetches.push_back(fetch);\n",
     "a wait that began after the interrupt is ended by it"),
    ("interrupt-ends-operations", "dispatcher", "timer.cpp",
     "        if (waiter->call || waiter->asynchronous) continue;\n",
     "        if (waiter->call) continue;\n",
     "an interrupt ends an operation and not the wait for it"),
    ("operation-sleeps-on", "dispatcher", "timer.cpp",
     "        if (waiter->asynchronous) waiter->cv.notify_all();\n",
     "",
     "the wait for an operation is not ended by an interrupt"),
    ("interrupt-unheard", "dispatcher", "timer.cpp",
     "    for (DispatchHook *hook : hooks_) hook->interrupted(interrupted);\n",
     "",
     "hooks do not end their waits at an interrupt"),
    ("answered-before", "dispatcher", "dispatcher.cpp",
     "    waiter.done = false;\n",
     "",
     "a waiter that asks again does not wait"),
    ("pieces-without-a-deadline", "dispatcher", "dispatcher.cpp",
     "        arm_timer(asked.deadline);\n",
     "",
     "a fetch of pieces waits beyond its deadline"),
    ("answers-come-first", "dispatcher", "dispatcher.cpp",
     ("    loop.add(*this);\n",
      "timeout_default_ns_(timeout_ns)\n{\n"),
     ("",
      "timeout_default_ns_(timeout_ns)\n{\n    loop.add(*this);\n"),
     "a waiter is answered before hooks that were added earlier"),
    ("answered-and-expected", "dispatcher", "dispatcher.cpp",
     "    waiters_.erase(found);\n    waiter.status",
     "    waiter.status",
     "a fetch that was answered still counts as waiting"),
    ("listener-unheard", "dispatcher", "dispatcher.cpp",
     "    if (waiter.listener) waiter.listener->answered(waiter);\n",
     "",
     "an operation is not notified of its answer"),
    ("call-is-dropped", "dispatcher", "dispatcher.cpp",
     "        deferred_.calls.push_back(&waiter);\n",
     "        static_cast<void>(waiter);\n",
     "an internal fetch is answered and its continuation never runs"),
    ("call-under-the-lock", "dispatcher", "dispatcher.cpp",
     "        deferred_.calls.push_back(&waiter);\n",
     "        waiter.call(waiter);\n",
     "a continuation runs with the lock held, and deadlocks when it takes it"),
    ("line-is-dropped", "dispatcher", "dispatcher.cpp",
     "    for (const LogLine &line : deferred.lines) log.line",
     "    for (const LogLine &line : deferred.lines)\n"
     "        if (&line == &deferred.lines[0]) log.line",
     "of two lines of an event one is printed"),
    ("calls-before-lines", "dispatcher", "dispatcher.cpp",
     ("    for (const LogLine &line : deferred.lines) log.line(line.level, line.topic, "
      "line.text.c_str());\n",
      "    for (Waiter *waiter : deferred.calls) waiter->call(*waiter);\n"),
     ("",
      "    for (Waiter *waiter : deferred.calls) waiter->call(*waiter);\n"
      "    for (const LogLine &line : deferred.lines) log.line(line.level, line.topic, "
      "line.text.c_str());\n"),
     "log lines of an event come after those of the events that it causes"),
    ("said-twice", "dispatcher", "dispatcher.cpp",
     "    return std::exchange(deferred_, {});\n",
     "    return deferred_;\n",
     "log lines and calls of an event are repeated by the next one"),
    ("stuck-is-not-told", "dispatcher", "dispatcher.cpp",
     "    if (stuck > stuck_.exchange(stuck)) core.tick(now, out);\n",
     "    if (stuck > stuck_.load()) core.tick(now, out);\n",
     "a view ends without an event although a fetch waits for it"),
    ("ended-meanwhile", "dispatcher", "dispatcher.cpp",
     "    if (stuck > stuck_.exchange(stuck)) core.tick(now, out);\n",
     "    stuck_.store(stuck);\n    static_cast<void>(now);\n    static_cast<void>(out);\n",
     "a view that ended while a fetch got stuck is not noticed"),
    ("nothing-before-unlock", "dispatcher", "dispatcher.h",
     "            for (DispatchHook *hook : hooks_) hook->before_unlock();\n",
     "",
     "hooks are not called at the end of an event"),
    ("unlocked-too-early", "dispatcher", "dispatcher.h",
     ("            for (DispatchHook *hook : hooks_) hook->before_unlock();\n",
      "            deferred = take_deferred();\n        }\n"),
     ("",
      "            deferred = take_deferred();\n        }\n"
      "        for (DispatchHook *hook : hooks_) hook->before_unlock();\n"),
     "the lock is released before the hooks are done with the event"),
    ("unlocked-unheard", "dispatcher", "dispatcher.h",
     "        for (DispatchHook *hook : hooks_) hook->unlocked();\n",
     "",
     "hooks are not called after the lock is released"),
    ("taken-without-the-lock", "dispatcher", "dispatcher.h",
     ("            deferred = take_deferred();\n",
      "        call_out(deferred);\n"),
     ("",
      "        deferred = take_deferred();\n        call_out(deferred);\n"),
     "log lines and calls of an event are taken by another one, or by two threads"),
    ("taken-too-early", "dispatcher", "dispatcher.h",
     "            for (DispatchHook *hook : hooks_) hook->before_unlock();\n"
     "            deferred = take_deferred();\n",
     "            deferred = take_deferred();\n"
     "            for (DispatchHook *hook : hooks_) hook->before_unlock();\n",
     "a log line of a hook at the end of an event waits for the next event"),
    ("called-out-under-the-lock", "dispatcher", "dispatcher.h",
     ("        call_out(deferred);\n",
      "            deferred = take_deferred();\n"),
     ("",
      "            deferred = take_deferred();\n            call_out(deferred);\n"),
     "the program's log is called with the lock held"),
]


def digest_of(texts):
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text)
        digest.update(b"\0")
    return digest.hexdigest()


class Builder:
    def __init__(self, arguments):
        self.source = arguments.source.resolve()
        self.build = arguments.build
        self.compiler = arguments.compiler
        self.build.mkdir(parents=True, exist_ok=True)
        folders = ["lib/collective", "lib/gathering", "lib/memory", "lib/observe", "lib/residency",
                   "lib/runtime/dispatch", "lib/runtime/handles", "lib/schedule", "lib/store",
                   "lib/support", "lib/transfer", "tests/generations", "tests/ranks",
                   "tests/simulation", "tests/unit/runtime", "tests/unit/schedule",
                   "tests/unit/transfer", "include/stepwell"]
        headers = [header for folder in folders
                   for header in sorted((self.source / folder).rglob("*.h"))]
        version = subprocess.run([self.compiler, "--version"], capture_output=True, check=True)
        self.base = digest_of([header.read_bytes() for header in headers] +
                              [version.stdout, " ".join(FLAGS + COMMON).encode()])
        self.common = self.build / "common.h"
        self.common.write_text("".join(f"#include <{name}>\n" for name in COMMON))
        subprocess.run([self.compiler, *FLAGS, "-x", "c++-header", str(self.common),
                        "-o", f"{self.common}.gch"], check=True)

    def compile(self, text, name, object_name, header=None):
        """Compiles the text of source `name`; the object is kept by what went into it. `header`:
        the name and the text of one that stands for the tree's."""
        folder = self.build / object_name
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / pathlib.Path(name).name
        target = source.with_suffix(".o")
        key_file = source.with_suffix(".key")
        key = digest_of([self.base.encode(), text.encode(), *(h.encode() for h in header or ())])
        if target.exists() and key_file.exists() and key_file.read_text() == key:
            return target
        source.write_text(text)
        first = []
        if header:
            shadow = folder / "headers" / header[0]
            shadow.parent.mkdir(parents=True, exist_ok=True)
            shadow.write_text(header[1])
            first = [f"-I{folder / 'headers'}"]
        command = [self.compiler, *FLAGS, "-include", str(self.common), *first,
                   f"-I{self.source}", f"-I{self.source}/include",
                   "-c", str(source), "-o", str(target)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(f"{object_name}: {name} does not compile\n{result.stderr}")
        key_file.write_text(key)
        return target

    def sources(self, judge):
        names = [path for pattern in judge.sources for path in sorted(self.source.glob(pattern))
                 if "*" not in pattern or not path.name.endswith("_test.cpp")]
        return [str(path.relative_to(self.source)) for path in names]

    def includes(self, name, header):
        """Whether the source includes the header, or something that does."""
        seen, names = set(), [name]
        while names:
            text = (self.source / names.pop()).read_text()
            for path in re.findall(r'^#include "((?:lib|tests)/[^"]+)"', text, re.MULTILINE):
                if path not in seen:
                    seen.add(path)
                    names.append(path)
        return header in seen

    def mutated(self, mutant, objects, source, text):
        """The objects with the text in place of the source, which may be a header."""
        folder = f"mutant/{mutant}"
        if not source.endswith(".h"):
            return {**objects, source: self.compile(text, source, folder)}
        users = [name for name in objects if self.includes(name, source)]
        return {**objects,
                **{name: self.compile((self.source / name).read_text(), name, folder,
                                      (source, text)) for name in users}}

    def objects(self, judge, pool):
        def one(name):
            text = (self.source / name).read_text()
            folder = "base/" + str(pathlib.Path(name).parent)
            return name, self.compile(text, name, folder)
        return dict(pool.map(one, self.sources(judge)))

    def link(self, objects, judge, name):
        program = self.build / name / "judge"
        program.parent.mkdir(parents=True, exist_ok=True)
        command = [self.compiler, *(str(path) for path in objects), "-o", str(program), "-pthread",
                   *judge.libraries]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(f"{name}: does not link\n{result.stderr}")
        return program


def ask(program, judge):
    """(found, what was said): a crash and a run without end count as found."""
    try:
        result = subprocess.run([str(program), *judge.arguments], capture_output=True,
                                text=True, timeout=judge.timeout_s)
    except subprocess.TimeoutExpired:
        return True, f"did not end within {judge.timeout_s} s"
    said = result.stdout.strip().splitlines()
    if result.returncode == 0:
        return False, said[-1]
    match = judge.found.search(result.stdout)
    if result.returncode == 1 and match:
        return True, f"caught by {match[1]}"
    if result.returncode < 0:
        return True, f"ended by signal {-result.returncode}"
    raise RuntimeError(f"{program}: status {result.returncode}: {result.stderr}")


def source_of(mutant):
    _, mode, file, *_ = mutant
    return file if "/" in file else f"{JUDGES[mode].folder}/{file}"


def chosen(mutants, changed, day):
    """The day's part of all, and some in changed files: in the order of their judges, of which few
    are compiled then, and one for the latter."""
    by_judge = sorted(mutants, key=lambda mutant: list(JUDGES).index(mutant[1]))
    due = turn(by_judge, day, -(-len(mutants) // TURNS))
    in_changed = [mutant for mutant in by_judge
                  if source_of(mutant) in changed and mutant not in due]
    first = turn(in_changed, day, CHANGED_MAX)
    first = [mutant for mutant in first if mutant[1] == first[0][1]]
    print(f"{len(due)} of {len(mutants)} mutants by turn, {len(first)} of the {len(in_changed)} "
          f"others in changed files; again with --turn {day}", flush=True)
    return due + first


def run_mutant(builder, objects, mutant):
    name, mode, _, find, replace, why = mutant
    judge = JUDGES[mode]
    source = source_of(mutant)
    text = (builder.source / source).read_text()
    pairs = [(find, replace)] if isinstance(find, str) else list(zip(find, replace))
    for old, new in pairs:
        if text.count(old) != 1:
            return False, f"{name}: {old!r} occurs {text.count(old)} times in {source}"
        text = text.replace(old, new)
    mutated = builder.mutated(name, objects[mode], source, text)
    program = builder.link(mutated.values(), judge, f"mutant/{name}")
    found, said = ask(program, judge)
    return found, f"{name} ({why}): {said}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--turn", type=int, nargs="?", metavar="DAY", const=TODAY)
    arguments = parser.parse_args()
    mutants = MUTANTS
    if arguments.turn is not None:
        mutants = chosen(MUTANTS, changed_files(arguments.source), arguments.turn)
    judges = {mode: JUDGES[mode] for mode in dict.fromkeys(mutant[1] for mutant in mutants)}
    builder = Builder(arguments)
    passed = failed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        objects = {mode: builder.objects(judge, pool) for mode, judge in judges.items()}
        for mode, judge in judges.items():
            found, said = ask(builder.link(objects[mode].values(), judge, f"clean/{mode}"), judge)
            print(f"{'FAIL' if found else 'ok'}   no mutant, {mode}: {said}", flush=True)
            passed, failed = passed + (not found), failed + found
        runs = [pool.submit(run_mutant, builder, objects, mutant) for mutant in mutants]
        for run in runs:
            try:
                found, said = run.result()
            except RuntimeError as error:
                found, said = False, str(error)
            print(f"{'ok' if found else 'FAIL'}   {said}", flush=True)
            passed, failed = passed + found, failed + (not found)
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
