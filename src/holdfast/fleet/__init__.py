"""The fleet: guards that many processes share on one Redis (or Valkey). One script decides, in one round trip.

`decide/` is the guards, in Lua, and `script` how they are asked; `desk` is where one tool asks and tells, `fleet` one
process in it, `service` its thread. `exchange` brings a question to who has its key: `link`, `multiplexed`, `pool` are
connections, `address`, `places` their ends.
"""
