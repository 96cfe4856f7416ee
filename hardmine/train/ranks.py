"""The processes of one training: one alone, or several that torchrun started and that share each batch.

All have the same plans, weights and losses; each reads and describes its own share of a batch. Nothing here averages:
descriptors are gathered, every process computes the loss of the whole batch, and the gradients that reach its own share
are summed with those of the others, which gives the gradient that one process would have.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed, nn

from hardmine.errors import HardmineError, InputError, LostProcessError, StoreError
from hardmine.mining.plan import Plan
from hardmine.train.control import Control

T = TypeVar("T")
_BUCKET = 25 << 20  # bytes of gradients that are summed at once
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells a process that it starts


class Ranks:
    """One process, which has every batch for itself.

    rank, size: its number, and how many there are. device: where it computes. Of several processes the methods are
    collective: all call them, in the same order."""

    rank, size = 0, 1

    def __init__(self, device: torch.device | str):
        self.device = torch.device(device)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes: the run's folder, its log, its mining store."""
        return self.rank == 0

    def lead(self, work: Callable[[], T]) -> T:
        """What `work` gives in the first process; the others do not do it, and wait for the result. Picklable."""
        return work()

    def slots(self, plan: Plan) -> np.ndarray | None:
        """Places of this process's share in a plan's rows, int64; None for all of them."""
        return None

    def gather(self, descriptors: Tensor, plan: Plan) -> Tensor:
        """The descriptors (m, D) of a plan's rows, in their order, from each process's share (m / size, D). Backward
        takes this share's part of the gradient as it is: every process computes the same loss, so that no sum is due
        here, and there is no factor of `size`."""
        return descriptors

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace the gradients of what each process used for its share by their sums over the processes."""

    def level(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors that every process has computed for itself by those of the first: they are equal but for
        what a device may round differently, and must not drift apart."""

    def agree(self, request: bool, plan: Plan | None) -> bool:
        """Whether any process makes the request; called by all before a step. Raises StoreError where their plans, if
        they have one, are not the same."""
        return request

    def array(self, make: Callable[[], np.ndarray], shape: Sequence[int]) -> np.ndarray:
        """The float32 array of this shape that the first process makes."""
        return make()


class Processes(Ranks):
    """One of several processes of a torch.distributed group, with a channel beside it."""

    def __init__(self, device: torch.device | str, control: Control):
        super().__init__(device)
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.control = control

    def lead(self, work: Callable[[], T]) -> T:
        """See `Ranks.lead`. The wait is no collective: it may last, and ends where another process fails."""
        if not self.first:
            return self.control.receive()
        result = work()
        self.control.send(result)
        return result

    def slots(self, plan: Plan) -> np.ndarray | None:
        """See `Ranks.slots`."""
        return plan.slots(self.rank, self.size)

    def gather(self, descriptors: Tensor, plan: Plan) -> Tensor:
        """See `Ranks.gather`."""
        every = np.concatenate([plan.slots(rank, self.size) for rank in range(self.size)])
        order = torch.from_numpy(np.argsort(every)).to(descriptors.device)
        own = torch.from_numpy(plan.slots(self.rank, self.size)).to(descriptors.device)
        return _Gather.apply(descriptors, order, own, self)

    def concatenated(self, share: Tensor) -> Tensor:
        """Tensors of one shape (n, ...) of all processes, one below the other: (size n, ...). Without gradient."""
        out = share.new_empty((self.size, *share.shape))
        with self._together():
            distributed.all_gather(list(out), share.detach().contiguous())
        return out.flatten(0, 1)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of tensors of one shape over the processes. Without gradient; `tensor` is overwritten."""
        with self._together():
            distributed.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """See `Ranks.sum_gradients`. In flat buckets, which travel while the next ones are filled."""
        travelling = []
        for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            with self._together():
                travelling.append((bucket, flat, distributed.all_reduce(flat, async_op=True)))
        for bucket, flat, work in travelling:
            with self._together():
                work.wait()
            for gradient, part in zip(bucket, flat.split([gradient.numel() for gradient in bucket])):
                gradient.copy_(part.view_as(gradient))

    def level(self, tensors: Iterable[Tensor]) -> None:
        """See `Ranks.level`."""
        for tensor in tensors:
            with self._together():
                distributed.broadcast(tensor, src=0)

    def agree(self, request: bool, plan: Plan | None) -> bool:
        """See `Ranks.agree`. Over the CPU in any case, so that no process waits for its device."""
        known = -1 if plan is None else zlib.crc32(plan.rows.tobytes())
        greatest = 1 << 33
        said = torch.tensor([int(request), known, greatest if plan is None else greatest - known])
        with self._together():
            distributed.all_reduce(said, distributed.ReduceOp.MAX)
        high, low = int(said[1]), greatest - int(said[2])
        if plan is not None and not said[0] and high != low:
            raise StoreError(
                f"the {self.size} processes of this training have planned different batches for step {plan.step}: start"
                " them on one file system, with the same store, and on devices of one kind; the last checkpoint is good"
            )
        return bool(said[0])

    def array(self, make: Callable[[], np.ndarray], shape: Sequence[int]) -> np.ndarray:
        """See `Ranks.array`."""
        out = torch.from_numpy(make()) if self.first else torch.empty(tuple(shape))
        with self._together():
            distributed.broadcast(out, src=0)
        return out.numpy()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Say of a collective that broke that another process has ended."""
        try:
            yield
        except RuntimeError as error:
            raise LostProcessError(
                f"another of the {self.size} processes of this training has ended without a word, killed perhaps, or "
                f"cannot be reached ({str(error).splitlines()[0]}): see what torchrun says of it. The same command "
                "goes on from the last checkpoint."
            ) from error


class _Gather(torch.autograd.Function):
    """The shares of all processes in the order of the plan, and back to this one's."""

    @staticmethod
    def forward(ctx: Any, share: Tensor, order: Tensor, own: Tensor, ranks: Processes) -> Tensor:
        ctx.save_for_backward(own)
        return ranks.concatenated(share)[order]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return gradients[0][ctx.saved_tensors[0]], None, None, None


def _buckets(gradients: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one type each, of about `_BUCKET` bytes together."""
    filling: dict[torch.dtype, list[Tensor]] = {}
    for gradient in gradients:
        bucket = filling.setdefault(gradient.dtype, [])
        bucket.append(gradient)
        if sum(each.numel() * each.element_size() for each in bucket) >= _BUCKET:
            yield filling.pop(gradient.dtype)
    yield from filling.values()


def launched() -> bool:
    """Whether torchrun, or what sets the same variables, has started this process."""
    return all(name in os.environ for name in _VARIABLES)


def launched_as() -> int:
    """The number that torchrun has given this process; 0 where it did not start it."""
    return int(os.environ["RANK"]) if launched() else 0


def default_device(device: torch.device | str | None = None) -> torch.device:
    """Where this process computes: on `device`, by default CUDA where it is there; of CUDA without a number, the one of
    this process's number on its machine. Raises InputError for what is no device, and for CUDA where there is none."""
    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise InputError(f"no device {str(device)!r}: give cpu, cuda, or one of several GPUs as cuda:1") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {str(device)!r}: torch finds no CUDA device on this machine; give cpu")
    if chosen.type == "cuda" and chosen.index is None and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return chosen


@contextmanager
def joined(device: torch.device | str | None = None) -> Iterator[Ranks]:
    """The processes that torchrun has started, this one among them; this one alone where it did not, or started one.

    Tensors travel by NCCL on CUDA and by gloo on the CPU. Where one process fails in here, all end: the one that was
    first raises its error, the others end with its exit code and without a word."""
    where = default_device(device)
    size = int(os.environ["WORLD_SIZE"]) if launched() else 1
    if size == 1:
        yield Ranks(where)
        return
    if where.type == "cuda":
        if device is not None and torch.device(device).index is not None:
            raise InputError(
                f"--device {device} is one GPU, and {size} processes would share it: give --device cuda, which is "
                "another GPU for each"
            )
        if where.index is not None and where.index >= torch.cuda.device_count():
            raise InputError(
                f"process {os.environ['RANK']} would compute on {where}, and there are {torch.cuda.device_count()} "
                "GPUs: start as many processes on this machine as it has GPUs, or give --device cpu"
            )
        torch.cuda.set_device(where)
    distributed.init_process_group("gloo" if where.type == "cpu" else "cpu:gloo,cuda:nccl")
    control = Control.connect(size)
    try:
        yield Processes(where, control)
        control.close()
        distributed.barrier()
    except BaseException as error:
        code = _said_elsewhere(control, error)
        if code is not None:
            raise SystemExit(code) from None
        raise
    distributed.destroy_process_group()


def _said_elsewhere(control: Control, error: BaseException) -> int | None:
    """The exit code of the process whose error is the one that counts; None where it is this one's."""
    try:
        code = control.failed(2.0) if isinstance(error, LostProcessError) else None
        if code is None and not control.fail(_exit_code(error)):
            code = control.failed(2.0) or 1
    except RuntimeError:  # the store is gone with torchrun or with rank 0, and nobody can be told
        return None
    return code


def _exit_code(error: BaseException) -> int:
    if isinstance(error, HardmineError):
        return error.exit_code
    return 130 if isinstance(error, KeyboardInterrupt) else 1
