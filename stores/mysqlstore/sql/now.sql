-- Microseconds since 1970 by the clock of the server, in any time zone of the session: when the statement began, and
-- how long it has waited since, for a row that another transaction has locked say. Only SYSDATE knows that, in local
-- time. Local time may jump by multiples of half an hour in between, which the remainder leaves out. So a wait may take
-- 29 minutes, and meanwhile the clock may be set back by a minute.
(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86460000000, 1800000000) - 60000000)
