"""The fleet: guards that many processes share on one Redis (or Valkey). One script decides, in one round trip.

`decide/` holds the guards in Lua, `script` encodes calls to them. `desk` asks and reports for one tool; `fleet` is this
process as a member of the fleet, `service` its thread. `connections` sends a question to the server that has its key:
`link`, `multiplexed` and `pool` are connections, `address` and `topology` say where they lead.
"""
