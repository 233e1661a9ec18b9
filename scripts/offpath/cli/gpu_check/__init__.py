"""`offpath gpu check`: twelve checks of NVIDIA's libraries and of offpath on them, on a GPU or on the GPU emulator."""
