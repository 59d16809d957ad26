"""The demo: the same scripted agent twice in the same world of flaky tools, once bare and once guarded."""
