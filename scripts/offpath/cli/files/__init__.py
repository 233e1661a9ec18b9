"""Readers of users' files (traces, throughputs, networks) and writers of pictures, shared by commands."""
