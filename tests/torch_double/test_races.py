# SPDX-License-Identifier: Apache-2.0
"""What is not ordered on the device `late` is named, and what is ordered is not."""
import unittest

import double
import torch

SIZE = 256


def data():
    return torch.full((SIZE, SIZE), 2.0, device="late")


class Races(unittest.TestCase):
    def setUp(self):
        torch.late.synchronize()
        double.violations()
        self.side = torch.late.Stream()
        self.main = torch.late.current_stream()

    def tearDown(self):
        torch.late.synchronize()
        self.assertEqual(double.violations(), [])

    def violation(self, pattern):
        torch.late.synchronize()
        found = double.violations()
        self.assertEqual(len(found), 1, found)
        self.assertRegex(found[0], pattern)

    def test_reads_of_another_stream_that_did_not_wait(self):
        product = data() @ data()
        with self.side:
            product + 1
        self.violation("aten::add.* reads .* not ordered after aten::mm")

    def test_memory_that_is_freed_while_another_stream_reads_it(self):
        one = data()
        torch.late.synchronize()
        with self.side:
            twice = one * 2
        address = one.data_ptr()
        del one
        other = torch.zeros_like(twice)
        self.assertEqual(other.data_ptr(), address)
        self.violation("memory that is given out again.* writes .* not ordered after aten::mul")

    def test_it_need_not_be_the_next_ones_to_be_found(self):
        one = data()
        torch.late.synchronize()
        with self.side:
            one * 2
        del one
        torch.empty(3, device="late")
        self.violation("memory that is given out again.* writes .* not ordered after aten::mul")

    def test_columns_are_bytes_of_their_own(self):
        whole = data()[:32]
        torch.late.synchronize()
        with self.side:
            whole[:, :100].fill_(1)
        whole[:, 100:].fill_(3)
        torch.late.synchronize()
        self.assertEqual(double.violations(), [])
        self.assertEqual(whole.sum().item(), 32 * (100 + 3 * (SIZE - 100)))
        with self.side:
            whole[:, 0].fill_(1)
        whole.fill_(2)
        self.violation("aten::fill_.* writes .* not ordered after aten::fill_")

    def test_a_recorded_stream_keeps_its_memory(self):
        one = data()
        self.side.wait_stream(self.main)
        address = one.data_ptr()
        with double.held(self.side):
            with self.side:
                one * 2
                one.record_stream(self.side)
            del one
            self.assertNotEqual(data().data_ptr(), address)
        torch.late.synchronize()
        self.assertEqual(data().data_ptr(), address)

    def test_a_copy_down_that_the_host_does_not_wait_for(self):
        for read in (lambda down: down[0, 0].item(), lambda down: down.add_(1),
                     lambda down: down[:2, 0].tolist(), lambda down: down.numpy()):
            down = data().to("cpu", non_blocking=True)
            self.assertTrue(down.is_pinned())
            read(down)
            self.violation("The host (reads|writes) .* while cuMemcpyDtoHAsync")
        self.assertEqual(down.sum().item(), 2.0 * SIZE * SIZE)

    def test_memory_that_the_host_writes_while_it_is_copied_up(self):
        up = torch.ones(SIZE, SIZE).pin_memory()
        up.to("late", non_blocking=True)
        up.fill_(3)
        self.violation("The host writes .* while cuMemcpyHtoDAsync")

    def test_what_looks_at_forms_touches_no_bytes(self):
        up = torch.ones(SIZE, SIZE).pin_memory()
        up.to("late", non_blocking=True)
        up.requires_grad_().detach().unsqueeze_(0).squeeze_(0).t_().t().view(-1)
        torch.empty_like(up)
        self.assertEqual((up.stride(0), up.is_pinned()), (SIZE, True))

    def test_pinned_memory_is_given_out_again_when_its_copy_is_over(self):
        up = torch.ones(SIZE, SIZE).pin_memory()
        address = up.data_ptr()
        with double.held(self.main):
            there = up.to("late", non_blocking=True)
            del up
            other = torch.empty(SIZE, SIZE, pin_memory=True)
            self.assertNotEqual(other.data_ptr(), address)
        torch.late.synchronize()
        self.assertEqual(torch.empty(SIZE, SIZE, pin_memory=True).data_ptr(), address)
        self.assertTrue(torch.all(there == 1).item())

    def test_a_gradient_of_a_side_stream_is_ordered_by_autograd(self):
        weight = data().requires_grad_()
        self.side.wait_stream(self.main)
        with self.side:
            product = weight @ data()
        self.main.wait_stream(self.side)
        product.sum().backward()
        self.main.wait_stream(self.side)
        self.assertEqual(weight.grad.cpu()[0, 0].item(), 2.0 * SIZE)

    def test_events_join_streams(self):
        event = torch.late.Event(enable_timing=True)
        product = data() @ data()
        event.record()
        with self.side:
            event.wait()
            more = product + 1
        end = self.side.record_event()
        end.synchronize()
        self.assertTrue(event.query() and end.query())
        self.assertEqual(more.cpu()[0, 0].item(), 4.0 * SIZE + 1)


if __name__ == "__main__":
    unittest.main()
