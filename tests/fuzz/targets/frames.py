"""Frames between the core of a server and its HTTP workers, whole and in pieces."""

from leafbeam.serve.frames import FrameReader, FromCore, FromWorker, encode

MAX_BYTES = 1 << 14


def fuzz_frames(data: bytes) -> None:
    """The first byte says whose frames the rest are."""
    kind, sent = (FromWorker if data[:1] < b"m" else FromCore), data[1:]
    whole: FrameReader[FromWorker | FromCore] = FrameReader(kind, MAX_BYTES)
    pieces: FrameReader[FromWorker | FromCore] = FrameReader(kind, MAX_BYTES)
    frames = whole.feed(sent)
    found = [frame for at in range(0, len(sent), 3) for frame in pieces.feed(sent[at : at + 3])]
    assert found == frames or any(frame != frame for frame in frames)  # a NaN in one
    again: FrameReader[FromWorker | FromCore] = FrameReader(kind, MAX_BYTES)
    for frame in frames:
        assert [encode(one) for one in again.feed(encode(frame))] == [encode(frame)]
