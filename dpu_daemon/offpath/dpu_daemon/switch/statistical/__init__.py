"""Statistical mode of the emulated switch: all jobs share its aggregators packet by packet (NetPack §2.2)."""
