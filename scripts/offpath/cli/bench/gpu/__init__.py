"""`offpath bench gpu`: requests on an NVIDIA GPU or on the GPU emulator, and what `offpath gpu check` shares."""
