INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('156cdbfd-9b46-8f5e-a448-7233b74b82a7', 'user 42', 'POST /payments', 'done-work', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '156cdbfd-9b46-8f5e-a448-7233b74b82a7', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '0', '', '', E'\\x776f726b20776974686f75742048545450', NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('629a5e18-b79b-8be2-8c51-6416506c3e7b', 'user 42', 'POST /payments', 'done-binary', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '629a5e18-b79b-8be2-8c51-6416506c3e7b', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '201', E'X-Odd\\x5c\\x3aName: caf\\xe9
X-Suppressed
', '', E'\\x275c00ff0a', NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('73c04b0d-38c4-8691-8b01-d7c8bf3540af', 'user 42', 'POST /payments', 'done-omitted', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '73c04b0d-38c4-8691-8b01-d7c8bf3540af', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '200', '', '', NULL, NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('73c0c8b8-b64a-8aa1-99a0-85f5ac973016', 'user 42', 'POST /payments', 'running', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '73c0c8b8-b64a-8aa1-99a0-85f5ac973016', '2030-01-10 12:00:00+00', '2030-01-10 12:01:00+00', '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('7935abcf-486b-852b-80c2-18be2217422b', 'user 42', 'POST /payments', 'done-trailer', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '7935abcf-486b-852b-80c2-18be2217422b', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '200', 'Trailer: X-Sum
', E'Trailer\\x3aX-Late: 2
X-Sum: 1
', E'\\x626f6479', NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('85014618-3b67-8f4b-bf4f-f2767fbb80e6', 'user 42', 'POST /payments', 'released-steps', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '85014618-3b67-8f4b-bf4f-f2767fbb80e6', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, '0', '{reserve,charge?}', E'{"\\\\x275c00","\\\\x38206279746573"}');
INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('92d022fa-a77b-86e3-9034-5de643c5ded2', 'user 42', 'POST /payments', 'released', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', '92d022fa-a77b-86e3-9034-5de643c5ded2', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('a70c3912-2229-8d54-a3af-2f0482eb5e39', 'user 42', 'POST /payments', 'done', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', 'a70c3912-2229-8d54-a3af-2f0482eb5e39', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '201', 'Content-Type: application/json
', '', E'\\x7b226964223a317d', NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('aa54aa4c-68c3-8f19-ad02-e96b22766191', 'user 42', 'POST /payments', 'running-steps', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', 'aa54aa4c-68c3-8f19-ad02-e96b22766191', '2030-01-10 12:00:00+00', '2030-01-10 12:01:00+00', '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, '0', '{reserve,charge?}', E'{"\\\\x275c00","\\\\x38206279746573"}');
INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('aca58756-be04-8e9f-be5a-4cffc38e48ae', 'user 42', 'POST /payments', 'done-header', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', 'aca58756-be04-8e9f-be5a-4cffc38e48ae', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '202', 'X-Large: vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv
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
INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('be315a05-22df-86cc-bd40-4478eae01870', 'user 42', 'POST /payments', 'running-extended', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', 'be315a05-22df-86cc-bd40-4478eae01870', '2030-01-10 12:00:00+00', '2030-01-10 14:00:00+00', '2030-01-10 14:00:00+00', '2030-01-10 14:00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('c656fcda-ffa4-8972-8c38-359c3f0cb884', 'user 42', 'POST /payments', 'done-note', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', 'c656fcda-ffa4-8972-8c38-359c3f0cb884', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '201', '', '', E'\\x626f6479', 'charge ch_1', '0', NULL, NULL);
INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('c8a062f7-400b-819f-a0b6-b694796bde0b', 'user 42', 'POST /payments', 'done-third', '3', E'\\x0100000000000000000000000000000000000000000000000000000000000000', 'c8a062f7-400b-819f-a0b6-b694796bde0b', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '201', 'Content-Type: application/json
', '', E'\\x7b226964223a317d', NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('d7261590-5d5c-8632-b84d-72a00d601b00', 'd3f107896983557a456d0f1500256e966ec79eb6ae4d3e0e599354e7ae210f1e', '94c64d06d306bd9eb5bfee94337a7bdcfe465a3eb98649882ca5969a9c5a4fec', '6ed14dba8df535f581a87ad7251fcf4ea83e806bde04bd6a7c82fac346b52dc4', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', 'd7261590-5d5c-8632-b84d-72a00d601b00', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '201', 'Content-Type: application/json
', '', E'\\x7b226964223a317d', NULL, '0', NULL, NULL);
INSERT INTO idempotency_records (operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results)
VALUES ('d8dda9ac-c20a-810f-b7ee-83a71f468265', 'user 42', 'POST /payments', 'done-empty', '1', E'\\x0100000000000000000000000000000000000000000000000000000000000000', 'd8dda9ac-c20a-810f-b7ee-83a71f468265', '2030-01-10 12:00:00+00', NULL, '2030-01-10 13:00:00+00', '2030-01-10 13:00:00+00', '2030-01-10 12:00:00+00', '204', '', '', E'\\x', NULL, '0', NULL, NULL);
