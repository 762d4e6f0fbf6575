# SPDX-License-Identifier: Apache-2.0
"""Operations in coroutines and in event loops."""
import asyncio
import gc
import os
import select
import threading

import stepwell
import support
from support import BLOCK

F32 = BLOCK // 4


def descriptors():
    return len(os.listdir("/proc/self/fd"))


class Awaits(support.Machine):
    def held(self, name):
        """A tensor, and a view that keeps others from writing it."""
        tensor = self.floats(F32, name, 1.0)
        return tensor, tensor.fetch(hand_over=True)

    def test_an_operation_is_awaited_for_its_view(self):
        tensor = self.floats(4 * F32, "t", 2.0)

        async def body():
            tensor.evict("device")
            tensor.evict("host")
            with self.runtime.fetch_async(tensor) as operation:
                with await operation as view:
                    self.assertEqual(bytes(view.bytes[:4]), b"\0\0\0\x40")
                with self.assertRaises(stepwell.InvalidError):
                    await operation
            views = await self.runtime.fetch_many_async([tensor, tensor])
            self.assertEqual(len(views), 2)
            views.release()

        asyncio.run(body())
        self.assertEqual(self.pinned(), 0)

    def test_the_loop_goes_on_while_a_task_waits(self):
        (tensor, view), order = self.held("t"), []

        async def write():
            with await self.runtime.fetch_async(tensor, "write"):
                order.append("written")

        async def body():
            task = asyncio.ensure_future(write())
            while tensor.info().open_views != 1 or not self.runtime._operations:
                await asyncio.sleep(0)
            order.append("released")
            view.release()
            await task

        before = descriptors()
        asyncio.run(body())
        self.assertEqual(order, ["released", "written"])
        self.assertEqual(descriptors(), before)

    def test_many_tasks_wait_together(self):
        held = [self.held(f"t{at}") for at in range(6)]

        async def body():
            operations = [self.runtime.fetch_async(tensor, "read_write") for tensor, _ in held]

            async def one(operation):
                with await operation:
                    return 1

            tasks = [asyncio.ensure_future(one(at)) for at in operations]
            await asyncio.sleep(0)
            self.assertFalse(any(task.done() for task in tasks))
            for _, view in reversed(held):
                view.release()
            self.assertEqual(sum(await asyncio.gather(*tasks)), 6)

        asyncio.run(body())

    def test_a_failure_is_raised_where_it_is_awaited(self):
        (tensor, view) = self.held("contended")

        async def body():
            with self.runtime.fetch_async(self.floats(10, "blank")) as operation:
                with self.assertRaises(stepwell.EmptyError) as caught:
                    await operation
            self.assertEqual(caught.exception.tensor, "blank")
            with self.assertRaises(stepwell.TimedOutError) as caught:
                await self.runtime.fetch_async(tensor, "write", timeout=0.02)
            self.assertIn("'contended'", str(caught.exception))

        asyncio.run(body())
        view.release()

    def test_a_cancelled_task_cancels_its_operation(self):
        (tensor, view) = self.held("t")

        async def body():
            operation = self.runtime.fetch_async(tensor, "write")
            task = asyncio.ensure_future(self.wait_for(operation))
            await asyncio.sleep(0)
            with self.assertRaises(stepwell.BusyError):
                await operation
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            with self.assertRaises(stepwell.CancelledError):
                operation.poll()
            operation.free()

        before = descriptors()
        asyncio.run(body())
        self.assertEqual(descriptors(), before)
        view.release()

    def test_what_is_freed_while_awaited_is_closed(self):
        (tensor, view) = self.held("t")

        async def body():
            operation = self.runtime.fetch_async(tensor, "write")
            task = asyncio.ensure_future(self.wait_for(operation))
            await asyncio.sleep(0)
            operation.free()
            with self.assertRaises(stepwell.ClosedError):
                await task

        asyncio.run(body())
        view.release()

    @staticmethod
    async def wait_for(operation):
        return await operation

    def test_a_loop_that_ends_leaves_nothing(self):
        (tensor, view) = self.held("t")
        loop = asyncio.new_event_loop()
        task = loop.create_task(self.wait_for(self.runtime.fetch_async(tensor, "write")))
        before = descriptors()
        loop.call_soon(loop.stop)
        loop.run_forever()
        self.assertEqual(descriptors(), before + 1)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            loop.run_until_complete(task)
        del task
        gc.collect()
        self.assertEqual(descriptors(), before)
        loop.close()
        view.release()

    @staticmethod
    def eventfd():
        return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def test_one_descriptor_tells_of_many(self):
        if not hasattr(os, "eventfd"):
            self.skipTest("os.eventfd needs Python 3.10")
        held = [self.held(f"t{at}") for at in range(3)]
        descriptor = self.eventfd()
        operations = [self.runtime.fetch_async(tensor, "write") for tensor, _ in held]
        for operation in operations:
            operation.notify(descriptor)
        operations[2].notify(None)
        self.assertEqual(select.select([descriptor], [], [], 0)[0], [])
        threading.Thread(target=lambda: [view.release() for _, view in held]).start()
        ends = 0
        while ends < 2:
            select.select([descriptor], [], [])
            ends += os.eventfd_read(descriptor)
        self.assertTrue(operations[0].poll() and operations[1].poll())
        self.assertTrue(operations[2].wait())
        self.assertEqual(select.select([descriptor], [], [], 0)[0], [])
        os.close(descriptor)
        with self.assertRaises(stepwell.InvalidError) as caught:
            operations[0].notify(descriptor)
        self.assertIn(f"descriptor {descriptor}", str(caught.exception))
        for operation in operations:
            operation.free()


if __name__ == "__main__":
    support.main()
