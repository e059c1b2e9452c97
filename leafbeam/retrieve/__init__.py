"""Item memory: retrieval by item-to-item transitions and by similar texts, without a trained model."""

from leafbeam.retrieve.bound import BoundMemory
from leafbeam.retrieve.config import MemoryConfig
from leafbeam.retrieve.memory import ItemMemory, MemoryResult, Reason

__all__ = ["BoundMemory", "ItemMemory", "MemoryConfig", "MemoryResult", "Reason"]
