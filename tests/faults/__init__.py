"""A campaign of faults: what is left running over night loses nothing, whatever happens.

    make faults                                     # every attack, in minutes
    python -m tests.faults --seed 1 --times 3 --only kill
    python -m tests.faults --seed 1 --only fuzz

An attack is a function of a random generator and an empty folder. It survives unless it raises: a
process that was stopped goes on to the same bits, damage is noticed, and what cannot be is one line
and exit code 2. Moments are drawn from the seed; when a signal arrives is up to the machine.
"""
