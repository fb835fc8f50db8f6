"""Serving, planned: what fits, how long a prompt and a token take, and how much comes out at which batch; no torch."""

from burnish.serve_plan.passes import Serving, decode_seconds, prefill_seconds, total_seconds
from burnish.serve_plan.plan import Asked, Plan, plan

__all__ = ["Asked", "Plan", "Serving", "decode_seconds", "plan", "prefill_seconds", "total_seconds"]
