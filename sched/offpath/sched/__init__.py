"""All decisions: job book, pure algorithms, hardware models, simulators. No I/O, no clock."""
