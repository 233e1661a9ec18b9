"""A helper's file as users write it: kernels that change, keep, fork, exit and draw. For ``offpath helper run``."""

from __future__ import annotations

import argparse
import asyncio
import os
import pickle
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np

from offpath.host_helper import Helper, SequenceContext

helper = Helper()
POOL = ThreadPoolExecutor(2)
LOADED = list(POOL.map(lambda n: 2 * n, range(4)))  # its threads run before a worker is forked
PROCESSES = ProcessPoolExecutor(1)
PROCESSES.submit(int).result()
DRAWN = np.random.default_rng()
CHOSEN = np.random.default_rng(7)
np.random.rand()
threading.Thread(target=threading.Event().wait, name="watcher", daemon=True).start()
arguments = argparse.ArgumentParser()
arguments.add_argument("--size", type=int, default=4)
SIZE = arguments.parse_args().size
last: list[Any] = []


class Net:
    def __init__(self) -> None:
        self.weight = SIZE


def double(value: int) -> int:
    return 2 * value


@helper.kernel("flatten", demand=14)
def flatten(x: Any) -> Any:
    """The shape that it was given, which it changes in place."""
    shape = np.array(x.shape)
    x.shape = (-1,)
    return shape


@helper.kernel("center", demand=14)
def center(x: Any) -> Any:
    x -= x.mean()
    return x


@helper.kernel("window", demand=14, sequences=True)
def window(chunk: Any, *, sequence: SequenceContext) -> Any:
    """The last two chunks, one behind the other."""
    kept = sequence.state.setdefault("chunks", [])
    kept.append(chunk)
    return np.concatenate(kept[-2:])


@helper.kernel(
    "counted", demand=14, sequences=True, inputs={"x": ("fp32", [1])}, outputs={"n": ("int64", [1])}
)  # fmt: skip
def counted(x: Any, *, sequence: SequenceContext) -> Any:
    """How often it was called in the sequence."""
    sequence.state["n"] = sequence.state.get("n", 0) + 1
    return np.array([sequence.state["n"]])


def is_same(x: Any) -> Any:
    """Whether the input is the last one."""
    is_equal = bool(last) and np.array_equal(last[0], x)
    last[:] = [x]
    return np.array([is_equal])


helper.kernel("same", demand=14)(is_same)
helper.kernel("same-of-copies", demand=14, keeps=True)(is_same)


@helper.kernel("view", demand=14)
def view(x: Any) -> Any:
    last[:] = [x[1:].reshape(-1)]
    return x


first: list[Any] = []


@helper.kernel("first-input", demand=14)
def first_input(x: Any) -> Any:
    """Whether the input is that of the first request, of which it keeps a view."""
    if not first:
        first.append(x[:])
    return np.array([float(np.array_equal(first[0], x))])


@helper.kernel("closure", demand=14)
def closure(x: Any) -> Any:
    """Its inner function, which is in a cycle with itself, has the argument until the garbage collector comes."""

    def total(n: int) -> float:
        return 0.0 if n == len(x) else float(x[n]) + total(n + 1)

    return np.array([total(0)])


@helper.kernel("fork", demand=14)
def fork(how: Any) -> Any:
    """Forks; the child returns, raises or exits, and the parent answers."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return 10 * how
    if how[0] == 1:
        return -how
    if how[0] == 2:
        raise ValueError("of the child")
    sys.exit(3)


@helper.kernel("end", demand=14)
def end(how: Any) -> Any:
    if how[0] == 1:
        sys.exit(3)
    if how[0] == 2:
        raise KeyboardInterrupt("stop")
    if how[0] == 3:
        raise asyncio.CancelledError("gone")
    return how


@helper.kernel("draw", demand=14)
def draw(x: Any) -> Any:
    return np.array([os.getpid(), np.random.rand(), DRAWN.random(), CHOSEN.random()])


@helper.kernel("pool", demand=14)
def pool(x: Any) -> Any:
    return np.array(list(POOL.map(lambda n: 2 * n, x)))


@helper.kernel("processes", demand=14)
def processes(x: Any) -> Any:
    """A pool of the worker's own."""
    with ProcessPoolExecutor(1) as own:
        return np.array(list(own.map(double, x.tolist())))


@helper.kernel("former-processes", demand=14)
def former_processes(x: Any) -> Any:
    return np.array(list(PROCESSES.map(double, x.tolist())))


@helper.kernel("pickled", demand=14)
def pickled(x: Any) -> Any:
    """A class of the file, by its own name and by that of a script."""
    saved = pickle.dumps(Net(), 0)
    by_script = saved.replace(Net.__module__.encode(), b"__main__")
    return np.array([pickle.loads(saved).weight, pickle.loads(by_script).weight])


@helper.kernel("declared", demand=14, inputs={"x": ("fp32", [-1, 3])}, outputs={"y": ("fp32", [-1, 3])})
def declared(x: Any) -> Any:
    return x


try:
    import torch
except ImportError:
    pass
else:

    @helper.kernel("gradient", demand=14, tensors="torch")
    def gradient(x: Any) -> Any:
        x.requires_grad_(True)
        (x * x).sum().backward()
        return x.grad

    @helper.kernel("unsqueeze", demand=14, tensors="torch")
    def unsqueeze(x: Any) -> Any:
        shape = torch.tensor(list(x.shape))
        x.unsqueeze_(0)
        return shape

    @helper.kernel("kept-tensor", demand=14, tensors="torch")
    def kept_tensor(x: Any) -> Any:
        last[:] = [x[1:]]
        return x + 1

    @helper.kernel("torch-draw", demand=14, tensors="torch")
    def torch_draw(x: Any) -> Any:
        return torch.rand(1)
