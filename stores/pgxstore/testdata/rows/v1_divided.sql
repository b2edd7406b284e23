INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\x289d4fbaa9624f7d9c173e4f7b6436cfaa73716c990195400bc188c2a3809b55', 'user 42', 'POST /payments', 'done-header', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '289d4fba-a962-4f7d-9c17-3e4f7b6436cf', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '202', 'X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
', '', E'\\x626f6479', NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\x326d5a9b41f3ab9bcc2bb2d84ea21aeb314a466d00ce888c42ecacddd8140f68', 'user 42', 'POST /payments', 'released-steps', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '326d5a9b-41f3-ab9b-cc2b-b2d84ea21aeb', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, '0', '{reserve,charge?}', E'{"\\\\x275c00","\\\\x38206279746573"}');
INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\x43aa2caf69af5c5388c5ab48c98a15a43e6a605db20dbd82d61deb72e53750ef', 'user 42', 'POST /payments', 'done-binary', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '43aa2caf-69af-5c53-88c5-ab48c98a15a4', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '201', E'X-Odd\\x5c\\x3aName: caf\\xe9
X-Suppressed
', '', E'\\x275c00ff0a', NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\x47acc7f19e5bfca43ff84cb2b08cbb85a5de9c3bb682384396d1f2308440733e', 'user 42', 'POST /payments', 'done-third', '3', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '47acc7f1-9e5b-fca4-3ff8-4cb2b08cbb85', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '201', 'Content-Type: application/json
', '', E'\\x7b226964223a317d', NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\x59e5db9f4be7e38511bfed3f7efcd081e901e8e87537bbacec5ffb98de26d944', 'user 42', 'POST /payments', 'released', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '59e5db9f-4be7-e385-11bf-ed3f7efcd081', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\x5a31da7457df480c643f33e34da6515f11e4704f4e508239dbbdd29dde55fbb6', 'user 42', 'POST /payments', 'done-empty', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '5a31da74-57df-480c-643f-33e34da6515f', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '204', '', '', E'\\x', NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\x6110853659d6dd3c2cabf6bb8321dfc85644773bbad0d4773f7ffec93dde47f0', 'user 42', 'POST /payments', 'done-trailer', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '61108536-59d6-dd3c-2cab-f6bb8321dfc8', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '200', 'Trailer: X-Sum
', E'Trailer\\x3aX-Late: 2
X-Sum: 1
', E'\\x626f6479', NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\x79d3a22cc3e0e0ca0d11afe9407a327b17aafaeaa0a7e0499cce514d422a09ca', 'user 42', 'POST /payments', 'done-omitted', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '79d3a22c-c3e0-e0ca-0d11-afe9407a327b', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '200', '', '', NULL, NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\x91091610324561067fd441e40a5737ab53fa2a55d2b03f16b735c3cfd53aa1ec', 'user 42', 'POST /payments', 'done-work', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '91091610-3245-6106-7fd4-41e40a5737ab', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '0', '', '', E'\\x776f726b20776974686f75742048545450', NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\x9f92be97cfe656ed1a4f4845f58956b68d9d2d705830c045b68599b3652db308', 'user 42', 'POST /payments', 'running', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '9f92be97-cfe6-56ed-1a4f-4845f58956b6', '2030-01-10 12:00:00+00', '2030-01-10 12:01:00+00', '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\xbeae67fb26150076541d0973d9fbffa323c922b7af25b7df951cf9cdc5aa10d4', 'd3f107896983557a456d0f1500256e966ec79eb6ae4d3e0e599354e7ae210f1e', '94c64d06d306bd9eb5bfee94337a7bdcfe465a3eb98649882ca5969a9c5a4fec', '6ed14dba8df535f581a87ad7251fcf4ea83e806bde04bd6a7c82fac346b52dc4', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', 'beae67fb-2615-0076-541d-0973d9fbffa3', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '201', 'Content-Type: application/json
', '', E'\\x7b226964223a317d', NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\xc1f571fe338d6026c701987ac15c4d63e1c7506da71342003a76980fe2ff9703', 'user 42', 'POST /payments', 'done', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', 'c1f571fe-338d-6026-c701-987ac15c4d63', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '201', 'Content-Type: application/json
', '', E'\\x7b226964223a317d', NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\xd4ddea8c3b3beb0c564ffeff933ad383b315509e990c42f37d9c89b9e1ac5c83', 'user 42', 'POST /payments', 'running-steps', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', 'd4ddea8c-3b3b-eb0c-564f-feff933ad383', '2030-01-10 12:00:00+00', '2030-01-10 12:01:00+00', '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, '0', '{reserve,charge?}', E'{"\\\\x275c00","\\\\x38206279746573"}');
INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\xee2284b73dad40ba5100633779ad75118623b0d9aea40035bb16dcea8135ea9b', 'user 42', 'POST /payments', 'done-note', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', 'ee2284b7-3dad-40ba-5100-633779ad7511', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '201', '', '', E'\\x626f6479', 'charge ch_1', '0', NULL, NULL);
INSERT INTO idempotency_records (digest, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES (E'\\xf856c96990387d5d4a48296719a4b0246cbea92b2fd5d04f62c87bef294a2e21', 'user 42', 'POST /payments', 'running-extended', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', 'f856c969-9038-7d5d-4a48-296719a4b024', '2030-01-10 12:00:00+00', '2030-01-10 14:00:00+00', '2030-01-10 14:00:00+00', '2030-01-10 14:00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, '0', NULL, NULL);
