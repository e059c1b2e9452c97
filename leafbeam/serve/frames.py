"""Frames between the core of a server and its HTTP workers: MessagePack behind its length, over a socket pair.

    HTTP worker                                      core
    Open      a request, with its body if it has one  ->
    Part      the next part of a body                 ->   <-  Pull      the next part may come
    Gone      the client has disconnected             ->   <-  Answer    status, headers, the body's first part
    Sent      the client has the last part            ->   <-  More      the next part of an answer
    Refused   a connection was refused                ->   <-  Abort     the answer ends here, incomplete
    Ready     connections are accepted                ->   <-  Declined  the request cannot be answered in time
                                                           <-  Setup     the first frame: what the worker has to know
    Beat      four times a second, echoed             ->   <-  Beat, Drain

Of each request at most one part is under way in either direction, so that a slow client fills no memory. Both processes run one
version of this file.
"""

from typing import Generic, TypeVar

import msgspec
from msgspec import Struct
from starlette.types import Scope

from leafbeam.errors import LeafbeamError, OverloadedError, counted
from leafbeam.serve.errors import BodyError, encodable
from leafbeam.serve.exposure import ConnectionLimits
from leafbeam.serve.log_format import LogFormat

PART_BYTES = 256 << 10  # of an answer, in one frame
ROOM_BYTES = 1 << 20  # of a frame, for what is not its body: headers of a request or an answer
BEAT_S = 0.25
_LENGTH_BYTES = 4
_ENCODER = msgspec.msgpack.Encoder()
F = TypeVar("F")
Headers = list[tuple[bytes, bytes]]


class FrameError(LeafbeamError, ValueError):
    """The other process of a link sent data that is not a frame, or is too long: it is no longer a part of this server."""


class Head(Struct, frozen=True, array_like=True):
    """All of a request but its body, as ASGI has it."""

    method: str
    path: str
    raw_path: bytes
    query_string: bytes
    headers: Headers
    scheme: str
    http_version: str
    client: tuple[str, int] | None
    server: tuple[str, int | None] | None

    @classmethod
    def of(cls, scope: Scope) -> "Head":
        return cls(*(scope[name] for name in cls.__struct_fields__))

    def scope(self) -> dict[str, object]:
        """Return a scope of ASGI."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {**fields, "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "root_path": "", "state": {}}


class Refusal(Struct, frozen=True, array_like=True):
    """Why a worker has refused a body: the fields of a BodyError."""

    message: str
    status: int
    reason: str
    param: str | None

    @classmethod
    def of(cls, error: BodyError) -> "Refusal":
        param = None if error.param is None else encodable(error.param)
        return cls(encodable(str(error)), int(error.status), error.reason, param)

    def error(self) -> BodyError:
        return BodyError(self.message, status=self.status, reason=self.reason, param=self.param)


class Open(Struct, frozen=True, array_like=True, tag=1):
    """A request. more: whether parts of its body follow.

    If the worker has read and checked the body, `arrived` is when that was done, by `time.monotonic`, and `refusal` the
    body's mistake.
    """

    id: int
    head: Head
    body: bytes = b""
    more: bool = False
    refusal: Refusal | None = None
    arrived: float | None = None


class Part(Struct, frozen=True, array_like=True, tag=2):
    id: int
    body: bytes
    more: bool


class Gone(Struct, frozen=True, array_like=True, tag=3):
    id: int


class Sent(Struct, frozen=True, array_like=True, tag=4):
    id: int


class Refused(Struct, frozen=True, array_like=True, tag=5):
    reason: str


class Ready(Struct, frozen=True, array_like=True, tag=6):
    pass


class Beat(Struct, frozen=True, array_like=True, tag=7):
    pass


class Setup(Struct, frozen=True, kw_only=True, array_like=True, tag=8):
    """The settings of a worker, in the first frame from the core.

    recommends: whether it reads bodies of requests for items, which take `deadline_s`. keys: the file of the clients' keys.
    origins: sites whose pages may read answers.
    """

    number: int
    core: int
    recommends: bool
    deadline_s: float
    max_values: int
    max_body_bytes: int
    max_body_s: float
    connections: ConnectionLimits
    certificate: str | None
    private_key: str | None
    grace_s: float
    log_format: LogFormat
    keys: str | None
    origins: tuple[str, ...]


class Pull(Struct, frozen=True, array_like=True, tag=9):
    id: int


class Answer(Struct, frozen=True, array_like=True, tag=10):
    id: int
    status: int
    headers: Headers
    body: bytes
    more: bool


class More(Struct, frozen=True, array_like=True, tag=11):
    id: int
    body: bytes
    more: bool


class Abort(Struct, frozen=True, array_like=True, tag=12):
    id: int


class Drain(Struct, frozen=True, array_like=True, tag=13):
    pass


class Declined(Struct, frozen=True, array_like=True, tag=15):
    """The fields of an OverloadedError; the worker makes the answer."""

    id: int
    message: str
    reason: str
    retry_after_s: float

    @classmethod
    def of(cls, number: int, error: OverloadedError) -> "Declined":
        return cls(number, str(error), error.reason, error.retry_after_s)

    def error(self) -> OverloadedError:
        return OverloadedError(self.message, reason=self.reason, retry_after_s=self.retry_after_s)


FromWorker = Open | Part | Gone | Sent | Refused | Ready | Beat
FromCore = Setup | Pull | Answer | More | Abort | Declined | Drain | Beat


def encode(frame: "FromWorker | FromCore") -> bytes:
    """Return a frame, as it is sent."""
    content = _ENCODER.encode(frame)
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


class FrameReader(Generic[F]):
    """Frames out of a stream of bytes. max_bytes: of one frame.

    >>> FrameReader(Part | Gone, 100).feed(encode(Gone(7)))
    [Gone(id=7)]
    """

    def __init__(self, kind: object, max_bytes: int) -> None:
        self._decoder: msgspec.msgpack.Decoder[F] = msgspec.msgpack.Decoder(kind)
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[F]:
        """Return the frames that are complete with these bytes. Raises FrameError."""
        buffer, frames, start = self._buffer, list[F](), 0
        buffer += data
        while len(buffer) >= start + _LENGTH_BYTES:
            begin = start + _LENGTH_BYTES
            length = int.from_bytes(buffer[start:begin], "big")
            if length > self._max_bytes:
                raise FrameError(f"a frame has {counted(length, 'byte')}: expected at most {self._max_bytes:,}")
            if len(buffer) < begin + length:
                break
            start = begin + length
            try:
                frames.append(self._decoder.decode(bytes(buffer[begin:start])))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise FrameError(f"what arrived is not a frame: {error}") from None
        del buffer[:start]
        return frames
