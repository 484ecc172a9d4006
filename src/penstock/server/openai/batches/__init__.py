"""Files and batches: requests in a file that are worked through behind live ones, and whose
answers are another file. All of it is kept on disk, so that a restart loses none."""
