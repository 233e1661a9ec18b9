"""Adapters over NVIDIA DOCA, by ctypes; see docs/doca.md. Run on an emulator of its C interface, never on hardware."""
