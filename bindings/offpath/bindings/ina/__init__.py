"""INA fabric: frames between ranks and emulated switches, and a rank's emulated link."""
