"""Many runs: suites of tasks, studies of the paper, and the processes or machines that make the runs."""
