"""The checks of `offpath doctor`. They change nothing and contact no other machine."""
