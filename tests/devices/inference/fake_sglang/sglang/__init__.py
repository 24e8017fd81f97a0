"""Stands for SGLang where the real one is too heavy: the same command line, HTTP and manners."""
