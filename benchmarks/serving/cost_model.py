"""Seconds of a batch on a GPU from arithmetic: products, reads of weights, reads of keys and values, launches.

    prefill   max(2 x weights x prompt tokens / flops, bytes of weights / bandwidth)
    a round   max(2 x weights x beam rows / flops, bytes of (weights + prompts' and beams' keys and values) / bandwidth)
    batch     prefill + (levels - 1) rounds + launches

Nothing here was measured on such a device. Peak figures are the vendor's; `share` is what products and reads are assumed to
reach.
"""

from dataclasses import dataclass

from leafbeam.engine.batcher import BatchSize

__all__ = ["H200", "ONE_REC", "Device", "ModelShape"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """flops: of dense bfloat16 a second. bandwidth: bytes a second. launch_s: of one captured round. share: reached of both."""

    name: str
    flops: float
    bandwidth: float
    launch_s: float = 60e-6
    share: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """weights: numbers of the model in bfloat16. token_bytes: keys and values of a token. levels: codes of an item."""

    name: str
    weights: float
    token_bytes: int
    levels: int

    def seconds(self, size: BatchSize, device: Device) -> float:
        """Seconds of a batch. Prompt keys and values are read once a round, as beams share them."""
        flops, bandwidth = device.flops * device.share, device.bandwidth * device.share
        prefill = max(2 * self.weights * size.padded_tokens / flops, 2 * self.weights / bandwidth)
        total = prefill + device.launch_s
        for level in range(1, self.levels):
            held = self.token_bytes * (size.padded_tokens + size.beam_rows * level)
            total += max(2 * self.weights * size.beam_rows / flops, (2 * self.weights + held) / bandwidth) + device.launch_s
        return total


H200 = Device(name="H200", flops=989e12, bandwidth=4.8e12)
# Qwen3-0.6B's layers: 28 of 1,024, 8 heads of keys and values of 128; three codes an item.
ONE_REC = ModelShape(name="28 layers of 1,024", weights=0.44e9, token_bytes=28 * 2 * 8 * 128 * 2, levels=3)
