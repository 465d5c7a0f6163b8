"""A run from start to verdict: begin, resume, evaluate, compare, judge."""
