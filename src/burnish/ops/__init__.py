"""The torch mechanisms that techniques and training need; they import models and tables only."""
