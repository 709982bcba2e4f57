"""One program a library, each run by the interpreter that has it: nothing here imports natgfn.

A worker makes a task ready, brings its policy to a mean length, and makes updates when asked.
"""
