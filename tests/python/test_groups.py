# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks: here threads, whose collectives are functions of this program."""
import threading
import unittest
from array import array

import stepwell
import support

BLOCK = support.BLOCK
FORMATS = {stepwell.Dtype.F32: "f", stepwell.Dtype.F64: "d"}
JOIN_SECONDS = 60


class World:
    """What the engines of all ranks share. Who posts last does the work of all."""

    def __init__(self, size):
        self.size = size
        self.lock = threading.Lock()
        self.works = {}
        self.cause = None
        self.barrier = threading.Barrier(size)

    def post(self, number, rank, *what):
        with self.lock:
            work = self.works.setdefault(number, {"posts": [None] * self.size, "done": False})
            work["posts"][rank] = what
            if None not in work["posts"]:
                self.carry_out(work["posts"])
                work["done"] = True
        return work

    def carry_out(self, posts):
        kind = posts[0][0]
        assert all(post[0] == kind for post in posts)
        if kind == "gather":
            shards = b"".join(bytes(shard) for _, shard, _ in posts)
            for _, _, whole in posts:
                whole[:] = shards
        elif kind == "scatter":
            total = self.total([whole for _, whole, _, _ in posts], posts[0][3])
            each = len(total) // self.size
            for rank, (_, _, shard, dtype) in enumerate(posts):
                shard.cast(FORMATS[dtype])[:] = total[rank * each:(rank + 1) * each]
        else:
            total = self.total([data for _, data, _ in posts], posts[0][2])
            for _, data, dtype in posts:
                data.cast(FORMATS[dtype])[:] = total

    @staticmethod
    def total(parts, dtype):
        values = [part.cast(FORMATS[dtype]) for part in parts]
        total = memoryview(bytearray(parts[0].nbytes)).cast(FORMATS[dtype])
        for at in range(len(total)):
            total[at] = sum(value[at] for value in values)
        return total


class Engine:
    def __init__(self, world, rank):
        self.world, self.rank = world, rank
        self.number = 0
        self.threads = set()
        self.closed = False

    def post(self, *what):
        self.number += 1
        return self.world.post(self.number, self.rank, *what)

    def all_gather(self, shard, whole):
        return self.post("gather", shard, whole)

    def reduce_scatter(self, whole, shard, dtype):
        return self.post("scatter", whole, shard, dtype)

    def all_reduce(self, data, dtype):
        return self.post("reduce", data, dtype)

    def poll(self, work):
        self.threads.add(threading.get_ident())
        if self.world.cause is not None and not work["done"]:
            raise ConnectionError("another rank has failed")
        return work["done"]

    def abort(self):
        self.world.cause = self.world.cause or "abort"

    def close(self):
        self.closed = True


def on_ranks(size, body, **options):
    """body(group, engine) in a thread for each rank; what each returned. The first failure is
    raised here, and ends the waits of the others."""
    world = World(size)
    results, failures = [None] * size, []

    def run(rank):
        try:
            engine = Engine(world, rank)
            with stepwell.Group.callbacks(engine, rank, size, **options) as group:
                results[rank] = body(group, engine)
                # Who leaves first takes the group from those that are not done.
                world.barrier.wait(JOIN_SECONDS)
        except BaseException as failure:
            failures.append(failure)
            world.cause = failure
            world.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def open_on(group, **options):
    settings = {"host_bytes": 64 * BLOCK, "block_bytes": BLOCK, "thread_count": 1, "timeout": 60,
                "group": group}
    settings.update(options)
    return stepwell.Runtime(**settings)


def numbers(begin, count, salt=0):
    return [float((at * 7 + salt) % 1021) for at in range(begin, begin + count)]


def floats_of(view):
    return view.bytes.cast("B").cast("f").tolist()


class Tensors(unittest.TestCase):
    def test_shards_of_all_ranks_are_fetched_as_a_whole(self):
        size = 20001

        def body(group, _engine):
            with open_on(group) as runtime:
                tensor = runtime.create("w", size, "f32", partition="sharded")
                info = tensor.info()
                self.assertEqual(info.partition, stepwell.Partition.SHARDED)
                tensor.write(array("f", numbers(info.shard_begin, info.shard_elements)),
                             scope="shard")
                with tensor.fetch() as whole:
                    self.assertEqual(floats_of(whole), numbers(0, size))
                with tensor.fetch(scope="shard") as shard:
                    self.assertEqual(floats_of(shard),
                                     numbers(info.shard_begin, info.shard_elements))
                mine = bytearray(4 * info.shard_elements)
                tensor.read(mine, scope=stepwell.Scope.SHARD)
                self.assertEqual(memoryview(mine).cast("f").tolist(),
                                 numbers(info.shard_begin, info.shard_elements))
                # As all ranks say it, of which each keeps its part.
                tensor.fill(3.0)
                operation = runtime.fetch_async(tensor)
                operation.wait()
                with operation.collect() as whole:
                    self.assertEqual(set(floats_of(whole)), {3.0})
                with runtime.fetch_async(tensor, scope="shard").collect() as shard:
                    self.assertEqual(len(floats_of(shard)), info.shard_elements)
                return info.shard_begin, info.shard_elements

        parts = on_ranks(3, body)
        self.assertEqual([begin for begin, _ in parts], [0, parts[0][1], 2 * parts[0][1]])
        self.assertEqual(sum(count for _, count in parts), size)

    def test_a_rank_that_needs_no_bytes_serves_the_others(self):
        size = 20001

        def body(group, _engine):
            with open_on(group) as runtime:
                expert = runtime.create("e", size, "f32", partition="sharded")
                info = expert.info()
                expert.write(array("f", numbers(info.shard_begin, info.shard_elements)),
                             scope="shard")
                with expert.fetch(absent=group.rank != 1) as whole:
                    seen = floats_of(whole)
                with runtime.fetch_async(expert, absent=group.rank == 1).collect() as whole:
                    self.assertEqual(len(floats_of(whole)), 0 if group.rank == 1 else size)
                return seen

        self.assertEqual(on_ranks(3, body), [[], numbers(0, size), []])

    def test_partitions_are_as_asked_for(self):
        def body(group, _engine):
            self.assertEqual((group.size, group.failure), (2, None))
            with open_on(group) as runtime:
                rows = runtime.create("rows", (500, 48), "f32", partition_multiple=48).info()
                self.assertEqual(rows.shard_elements % 48, 0)
                small = runtime.create("small", 8).info()
                self.assertEqual(small.partition, stepwell.Partition.REPLICATED)
                cache = runtime.create("cache", 100000, role="cache").info()
                self.assertEqual(cache.partition, stepwell.Partition.LOCAL)
                self.assertEqual(cache.shard_elements, 100000)
            return group.rank

        self.assertEqual(on_ranks(2, body), [0, 1])
        with open_on(None) as alone:
            tensor = alone.create("w", 100000, partition="sharded")
            self.assertEqual(tensor.info().partition, stepwell.Partition.LOCAL)
            tensor.fill(1.0)
            with tensor.fetch(scope="shard") as all_of_it:
                self.assertEqual(len(floats_of(all_of_it)), 100000)

    def test_sums_go_to_the_shards(self):
        def body(group, _engine):
            mine = float(group.rank + 1)
            with open_on(group) as runtime:
                for partition in ("sharded", "replicated"):
                    gradient = runtime.create(partition, 3000, "f32", role="grad",
                                              partition=partition)
                    gradient.reduce(array("f", [mine] * 3000), more=True)
                    gradient.reduce(array("f", [10 * mine] * 3000))
                    with gradient.fetch(scope="shard") as sums:
                        self.assertEqual(set(floats_of(sums)), {66.0})
                    with runtime.fetch(gradient, "reduce") as view:
                        view.bytes.cast("B").cast("f")[0] = mine
                    whole = bytearray(4 * 3000)
                    gradient.read(whole)
                    self.assertEqual(memoryview(whole).cast("f")[:2].tolist(), [72.0, 66.0])

        on_ranks(3, body)

    def test_sums_go_over_shards_and_replicas(self):
        shards, replicas = ([World(2), World(2)] for _ in range(2))

        def body(group, engine):
            node, place = divmod(group.rank, 2)
            with stepwell.Group.callbacks(Engine(shards[node], place), place, 2) as near, \
                    stepwell.Group.callbacks(Engine(replicas[place], node), node, 2) as far:
                with open_on(near, replica_group=far) as runtime:
                    self.assertRaises(stepwell.BusyError, far.destroy)
                    gradient = runtime.create("g", 3000, "f32", role="grad", partition="sharded")
                    gradient.reduce(array("f", [float(group.rank + 1)] * 3000))
                    with gradient.fetch(scope="shard") as sums:
                        self.assertEqual(floats_of(sums), [10.0] * 1500)
                    runtime.drain()
                with self.assertRaisesRegex(stepwell.Error, "replica_group has 2 ranks"):
                    open_on(None, replica_group=far)
                engine.world.barrier.wait(JOIN_SECONDS)

        on_ranks(4, body)

    @support.needs_numpy
    def test_a_whole_has_the_shape_of_its_tensor_by_dlpack(self):
        def body(group, _engine):
            with open_on(group) as runtime:
                tensor = runtime.create("g", (100, 300), role="grad", partition="sharded")
                array = support.numpy.from_dlpack(tensor.fetch("reduce"))
                shape = array.shape
                del array  # a pin: gone before anything fails
                self.assertEqual(shape, (100, 300))

        on_ranks(2, body)

    def test_training_has_the_bits_of_one_rank(self):
        size, batches = 20000, 4

        def train(runtime, rank, ranks):
            weights = runtime.create("w", size, "f32", role="param", partition="sharded")
            gradient = runtime.create("g", size, "f32", role="grad", partition="sharded")
            weights.write(array("f", numbers(0, size)))
            optimizer = runtime.adamw(stepwell.Hyper(lr=0.01))
            optimizer.add(weights, gradient)
            norms = []
            for _ in range(2):
                for batch in range(rank, batches, ranks):
                    # Of whole numbers, so that their sums are exact in any order.
                    gradient.reduce(array("f", numbers(0, size, batch)),
                                    more=batch + ranks < batches)
                norms.append(optimizer.step(clip_norm=1.0).norm)
            out = bytearray(4 * size)
            weights.read(out)
            return norms, bytes(out)

        def body(group, _engine):
            with open_on(group) as runtime:
                return train(runtime, group.rank, group.size)

        with open_on(None) as runtime:
            alone = train(runtime, 0, 1)
        for together in on_ranks(2, body):
            self.assertEqual(together[0], alone[0])
            self.assertTrue(together[1] == alone[1])

    def test_ranks_in_another_order_are_told(self):
        def body(group, _engine):
            with open_on(group) as runtime:
                tensors = [runtime.create(name, 20000, partition="sharded")
                           for name in ("first", "second")]
                for tensor in tensors:
                    tensor.fill(1.0, scope="shard")
                with self.assertRaisesRegex(stepwell.OrderError, "'first'.*'second'"):
                    tensors[group.rank].fetch()

        on_ranks(2, body)


# An exception has what was exported of ranks whose group, and its engine's functions, go before it.
LEAVES = """
import test_groups
def body(group, engine):
    runtime = test_groups.open_on(group)
    view = runtime.create("g", 20000, "f32", partition="sharded", role="grad").fetch("reduce")
    exported = view.__dlpack__()
    raise KeyError
try:
    test_groups.on_ranks(2, body)
except KeyError:
    print("told")
"""


class Engines(unittest.TestCase):
    def test_the_interpreter_ends_with_views_of_a_group_open(self):
        self.assertEqual(support.run_program(LEAVES), (0, "told\n"))

    def test_what_an_engine_raises_ends_the_group_and_is_kept(self):
        cases = ((ConnectionError("cable"), stepwell.PeerError),
                 (NotImplementedError("not on this machine"), stepwell.UnsupportedError),
                 (MemoryError(), stepwell.OutOfMemoryError))
        for raised, expected in cases:
            class Failing(Engine):
                def all_gather(self, shard, whole, raised=raised):
                    if self.number:
                        raise raised
                    return super().all_gather(shard, whole)

            engine = Failing(World(1), 0)
            with stepwell.Group.callbacks(engine, 0, 1) as group:
                self.assertIsNone(group.failure)
            failing = Failing(World(1), 0)
            failing.number = 1
            with self.assertRaises(expected):
                stepwell.Group.callbacks(failing, 0, 1)

    def test_a_failure_between_ranks_is_an_error_of_the_call(self):
        mistake = ZeroDivisionError("of the engine's")

        def fails(_shard, _whole):
            raise mistake

        def body(group, engine):
            with open_on(group) as runtime:
                tensor = runtime.create("w", 20000, partition="sharded")
                tensor.fill(1.0)
                if group.rank == 1:
                    engine.all_gather = fails
                    with self.assertRaises(stepwell.PeerError):
                        tensor.fetch()
                    self.assertIs(group.failure, mistake)
                    engine.world.cause = mistake
                else:
                    with self.assertRaises(stepwell.PeerError):
                        tensor.fetch()
                    self.assertIsInstance(group.failure, ConnectionError)
                # What is local goes on.
                with tensor.fetch(scope="shard") as shard:
                    self.assertEqual(set(floats_of(shard)), {1.0})

        on_ranks(2, body)

    def test_ctrl_c_while_joining_is_raised(self):
        class Waiting(Engine):
            def poll(self, work):
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            stepwell.Group.callbacks(Waiting(World(2), 0), 0, 2)

    def test_the_callers_thread_alone_calls_where_that_is_asked(self):
        def body(group, engine):
            with open_on(group) as runtime:
                tensor = runtime.create("w", 20000, partition="sharded")
                tensor.fill(1.0)
                with tensor.fetch() as whole:
                    self.assertEqual(set(floats_of(whole)), {1.0})
            return engine.threads == {threading.get_ident()}

        self.assertEqual(on_ranks(2, body, caller_thread=True), [True, True])
        self.assertEqual(on_ranks(2, body), [False, False])

    def test_an_engine_is_closed_with_its_group(self):
        engine = Engine(World(1), 0)
        group = stepwell.Group.callbacks(engine, 0, 1)
        runtime = open_on(group)
        with self.assertRaises(stepwell.BusyError):
            group.destroy()
        self.assertFalse(engine.closed)
        runtime.close()
        group.destroy()
        group.destroy()
        self.assertTrue(engine.closed)
        with self.assertRaises(stepwell.ClosedError):
            group.rank
        with self.assertRaises(stepwell.ClosedError):
            open_on(group)

    def test_what_no_group_can_be_is_refused(self):
        with self.assertRaisesRegex(TypeError, "no all_gather, all_reduce"):
            stepwell.Group.callbacks(type("Half", (), {
                "all_gather": 1, "reduce_scatter": Engine.reduce_scatter, "poll": Engine.poll,
            })(), 0, 1)
        with self.assertRaisesRegex(stepwell.InvalidError, "options.rank 2"):
            stepwell.Group.callbacks(Engine(World(2), 2), 2, 2)
        with self.assertRaisesRegex(stepwell.UnsupportedError, "'absent'"):
            stepwell.Group.mpi(module="absent")
        with self.assertRaisesRegex(stepwell.UnsupportedError, "'absent'"):
            stepwell.Group.nccl(0, 2, b"x" * 128, module="absent")
        with self.assertRaisesRegex(stepwell.InvalidError, "unique_id"):
            stepwell.Group.nccl(0, 2)
        with self.assertRaisesRegex(stepwell.InvalidError, "device_ordinal -1"):
            stepwell.Group.nccl(0, 2, b"x" * 128, device_ordinal=-1)

    def test_a_group_of_this_process_alone(self):
        with stepwell.Group.alone() as group, open_on(group) as runtime:
            self.assertEqual((group.rank, group.size), (0, 1))
            runtime.create("w", 10).fill(1.0)
        with stepwell.Group.alone() as group:
            with group.split(0) as part:
                self.assertEqual(part.size, 1)
            self.assertIsNone(group.split(-1))
        engine = Engine(World(1), 0)
        with stepwell.Group.callbacks(engine, 0, 1) as group:
            with self.assertRaises(stepwell.UnsupportedError):
                group.split(0)

    def test_a_group_that_nobody_destroyed_is_told_of(self):
        with self.assertWarnsRegex(ResourceWarning, "was not destroyed"):
            stepwell.Group.alone()


if __name__ == "__main__":
    support.main()
