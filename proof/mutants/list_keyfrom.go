package main

var keyFromMutants = []mutant{{
	name: "keyfrom-key-is-compared", broken: "The place of the key is a part of the fingerprint.",
	file: "fingerprint/keyfrom/keyfrom.go", testPackage: "./fingerprint/keyfrom",
	from: "places.leaveOutKeys(idempotency.FingerprintRaw)",
	to:   "idempotency.FingerprintRaw",
	test: "TestRepetitions",
}, {
	name: "keyfrom-last-key-wins", broken: "Of two different keys in a request, the last one counts.",
	file: "fingerprint/keyfrom/search.go", testPackage: "./fingerprint/keyfrom",
	from: "	case found && s.hasKey && key != s.key:\n		return newKeyFault(\"%s and %s have different keys\", s.keyPlace, place)\n",
	to:   "",
	test: "TestAmbiguousRequestsAreRefused",
}, {
	name: "keyfrom-case-of-members", broken: "A member may differ from the place of the key in case, so encoding/json finds another key.",
	file: "fingerprint/keyfrom/json.go", testPackage: "./fingerprint/keyfrom",
	from: "			if other != name && strings.EqualFold(other, name) {",
	to:   "			if other != name && other == name+\"?\" {",
	test: "TestAmbiguousRequestsAreRefused",
}, {
	name: "keyfrom-compressed-passes", broken: "A key in a compressed body is overlooked, and the request passes unprotected.",
	file: "fingerprint/keyfrom/search.go", testPackage: "./fingerprint/keyfrom",
	from: "			return errCoded\n",
	to:   "			continue\n",
	test: "TestCompressedBodies",
}, {
	name: "keyfrom-room-is-kept", broken: "A body that the handler leaves unread occupies the budget for good.",
	file: "fingerprint/keyfrom/search.go", testPackage: "./fingerprint/keyfrom",
	from: "	if s.body != nil {\n		_ = s.body.Close()\n	}\n",
	to:   "",
	test: "TestRoomIsGivenBack",
}, {
	name: "keyfrom-forgets-the-key", broken: "After a crash, a repetition gets another random key, so a provider charges twice.",
	file: "fingerprint/keyfrom/content.go", testPackage: "./fingerprint/keyfrom",
	from: "		id, err := step.Do(ctx, \"key\", newRandomKey)\n",
	to:   "		_, _ = step.Do(ctx, \"key\", newRandomKey)\n		id, err := newRandomKey(ctx)\n",
	test: "TestContentAfterFailures",
}}
