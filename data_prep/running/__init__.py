"""How stages run: processes, MPI ranks, files, progress and times."""
