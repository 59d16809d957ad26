"""The tools of an agent framework, guarded: one short file each, named after the framework, with one function `guard`.

It goes where the framework lets others around a tool's call. What it is called by is the tool's name, which policies
know it by, and the arguments that the model gave. Nothing of a framework is imported before its file is.
"""
