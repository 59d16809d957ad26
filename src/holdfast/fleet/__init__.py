"""The fleet: guards that many processes share on one Redis (or Valkey). One script decides, in one round trip.

`decide.lua` is the guards, `script` how it is asked, `desk` where one tool asks and tells, `fleet` one process in it,
`service` its thread; `link`, `multiplexed` and `pool` are connections, `address` and `places` their ends.
"""
