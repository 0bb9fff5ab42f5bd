"""The suite's part for schedules."""
