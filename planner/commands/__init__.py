"""The commands: read, call, render. Nothing is decided here.

Imports are made where they are used: the time of a short command is the time of its imports.
"""
