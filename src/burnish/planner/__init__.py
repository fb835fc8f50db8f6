"""Planner: a model, a cluster and a batch -> the mapping to take, what it takes, and why the others are not taken."""

from burnish.planner.answer import ModelPlan as ModelPlan
from burnish.planner.answer import plan_model as plan_model
from burnish.planner.request import Request as Request
from burnish.planner.request import parse_fix as parse_fix
from burnish.planner.request import request as request
