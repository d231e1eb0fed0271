"""The paper's experiments: suites of tasks, studies, sweeps, scores and the report. docs/experiments.md."""
