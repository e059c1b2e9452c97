"""Threads that run one at a time, in an order and at a time that a seed decides.

A `World` stands for the module `threading` in the code that is simulated. Its threads are real ones that pass a baton: they
give it up where they block, and now and then before a lock, where an operating system may stop them too. Time passes only
when every thread waits, and then up to the moment when the first of them goes on, or a little later.
"""

import math
import threading
from collections.abc import Callable
from random import Random

LATENCY_S = 0.004  # up to so much later than it asked for a thread wakes up


class Deadlock(AssertionError):
    """Every thread waits, and none of them for a moment in time."""


class Thread:
    """The part of `threading.Thread` that is used."""

    def __init__(self, world: "World", target: Callable[[], object], name: str = "", daemon: bool = True) -> None:
        self.name, self._world, self._target = name, world, target
        self.baton = threading.Semaphore(0)
        self.until: float | None = None  # None: ready
        self.alive = False
        self.error: BaseException | None = None

    def start(self) -> None:
        self.alive = True
        self._world.threads.append(self)
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def is_alive(self) -> bool:
        return self.alive

    def join(self, timeout: float | None = None) -> None:
        world = self._world
        over = math.inf if timeout is None else world.now + timeout
        while self.alive and world.now < over:
            world.joining.append(world.current)
            world.wait_until(over)

    def _run(self) -> None:
        self.baton.acquire()
        try:
            self._target()
        except BaseException as error:
            self.error = error
        self.alive = False
        world = self._world
        world.threads.remove(self)
        for thread in world.joining:
            thread.until = None
        world.joining.clear()
        world.next_thread().baton.release()


class World:
    """The threads, their clock, and the names of `threading` that the code uses. before_advance: called before time passes."""

    def __init__(self, random: Random, *, before_advance: Callable[[], None] = lambda: None) -> None:
        self.random, self.now = random, 0.0
        self.before_advance = before_advance
        self.current = self._main = Thread(self, lambda: None, "main")
        self.threads = [self.current]
        self.joining: list[Thread] = []
        self._error: BaseException | None = None

    # What the code uses of `threading`.

    def Thread(self, *, target: Callable[[], object], name: str = "", daemon: bool = True) -> Thread:
        return Thread(self, target, name, daemon)

    def RLock(self) -> "Lock":
        return Lock(self)

    def Condition(self, lock: "Lock") -> "Condition":
        return Condition(self, lock)

    def current_thread(self) -> Thread:
        return self.current

    # What a simulation uses.

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.wait_until(self.now + seconds)

    def wait_until(self, until: float) -> None:
        """Go on at that time, or when another thread sets `until` to None."""
        self.current.until = until
        self.switch()

    def switch(self) -> None:
        """Let a thread that is ready go on, perhaps this one."""
        before = self.current
        after = self.next_thread()
        if after is not before:
            after.baton.release()
            before.baton.acquire()
        if before is self._main and self._error is not None:
            error, self._error = self._error, None
            raise error

    def next_thread(self) -> Thread:
        ready = [thread for thread in self.threads if thread.until is None]
        if not ready:
            try:
                self.before_advance()
                first = min(thread.until for thread in self.threads if thread.until is not None)
                if first == math.inf:
                    raise Deadlock([thread.name for thread in self.threads])
                self.now = max(self.now, first) + self.random.choice([0, 0, self.random.uniform(0, LATENCY_S)])
                ready = [thread for thread in self.threads if thread.until is not None and thread.until <= self.now]
            except AssertionError as error:
                self._error, ready = error, [self._main]
            for thread in ready:
                thread.until = None
        self.current = self.random.choice(ready)
        return self.current


class Lock:
    """A reentrant lock; another thread may go on before it is taken."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.owner: Thread | None = None
        self.depth = 0
        self._waiting: list[Thread] = []

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, depth: int = 1) -> None:
        world = self._world
        if self.owner is not world.current and world.random.random() < 0.3:
            world.switch()
        while self.owner not in (None, world.current):
            self._waiting.append(world.current)
            world.wait_until(math.inf)
        self.owner, self.depth = world.current, self.depth + depth

    def release(self, depth: int = 1) -> None:
        assert self.owner is self._world.current
        self.depth -= depth
        if self.depth == 0:
            self.owner = None
            for thread in self._waiting:
                thread.until = None
            self._waiting.clear()


class Condition:
    """A condition variable on a `Lock`."""

    def __init__(self, world: World, lock: Lock) -> None:
        self._world, self._lock = world, lock
        self._waiters: list[Thread] = []

    def wait(self, timeout: float | None = None) -> None:
        world, depth = self._world, self._lock.depth
        me = world.current
        self._waiters.append(me)
        self._lock.release(depth)
        world.wait_until(math.inf if timeout is None else world.now + timeout)
        if me in self._waiters:
            self._waiters.remove(me)
        self._lock.acquire(depth)

    def notify(self, n: int = 1) -> None:
        assert self._lock.owner is self._world.current
        for thread in self._waiters[:n]:
            thread.until = None
        del self._waiters[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiters))
