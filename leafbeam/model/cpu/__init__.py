"""The CPU engine: Qwen3's layers on packed rows, in reused memory, by kernels and products that suit this machine."""
