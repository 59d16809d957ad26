"""Guards for the tools of agent frameworks: one short file per framework, named after it, with one function `guard`.

`guard` hooks in where the framework lets other code around a tool's call. A call is identified by the tool's name, by
which policies find the tool, and by the arguments that the model gave. A framework is imported only when its file is.
"""
