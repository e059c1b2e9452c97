"""Item memory: retrieval by item-to-item transitions and by similar texts, without a trained model."""

from leafbeam.retrieve.bound import BoundMemory
from leafbeam.retrieve.fusion import Beams, Example, Fusion, Fusions, features
from leafbeam.retrieve.live_memory import Event, LiveMemory, set_log_aside
from leafbeam.retrieve.memory import ItemMemory, MemoryResult, Reason
from leafbeam.retrieve.transitions import MemoryConfig

__all__ = [
    "Beams",
    "BoundMemory",
    "Event",
    "Example",
    "Fusion",
    "Fusions",
    "ItemMemory",
    "LiveMemory",
    "MemoryConfig",
    "MemoryResult",
    "Reason",
    "features",
    "set_log_aside",
]
