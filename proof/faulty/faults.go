//go:build unix

package faulty

// Fault is the name of a seeded fault.
type Fault string

// None is the correct service. Its provider acts once for each operation, however often the handler runs. With most faults,
// the provider acts each time, because a provider that takes keys would hide them.
const None Fault = ""

// The faults, in the order of a request.
const (
	IgnoresHeader          Fault = "reads the key from X-Idempotency-Key"
	PanicsWithoutKey       Fault = "panics if the key is missing"
	EmptyKeyIsKey          Fault = "takes the empty key for a key"
	CutsKeys               Fault = "compares the first 255 characters of a key"
	FoldsKeys              Fault = "compares keys without case"
	FailsOnUnicode         Fault = "fails with 500 on a key that is not ASCII"
	SkipsTwoKeys           Fault = "executes a request with two keys without protection"
	FailsOnQuotes          Fault = "fails with 500 on a quoted key"
	KeyWithoutUser         Fault = "has one key space for all users"
	KeyWithoutPath         Fault = "has one key space for all routes"
	NoFingerprint          Fault = "does not compare contents"
	FingerprintWithLength  Fault = "compares Content-Length, which a chunked request lacks"
	FingerprintWithTracing Fault = "compares Traceparent, which each message has anew"
	FingerprintOfBegin     Fault = "compares the first 64 KB of a content"
	FingerprintPerProcess  Fault = "compares contents in the process that executed the first one"
	IgnoresKey             Fault = "takes equal contents for one operation, whatever their keys are"
	FingerprintWithVersion Fault = "compares the version of HTTP"
	SkipsLargeBodies       Fault = "executes large bodies without protection"
	FailsOnCompressed      Fault = "fails with 500 on a compressed body"
	ClaimsBeforeBody       Fault = "claims the key before it reads the body, and keeps the claim if the body breaks off"
	ActsBeforeBody         Fault = "acts before it has read the body"
	ActsBeforeClaim        Fault = "acts before it claims the key"
	ChecksThenSets         Fault = "looks for a record, and stores one after the handler"
	LocksPerProcess        Fault = "claims keys with a lock of the process"
	RecordsPerProcess      Fault = "keeps records in the memory of the process"
	LocksForEver           Fault = "claims without a lease"
	LeaseNotRenewed        Fault = "does not renew the lease while the handler runs"
	RefusesWith400         Fault = "refuses duplicates with 400"
	FailsOnDuplicate       Fault = "fails with 500 on a duplicate, because the claim violates a constraint"
	ReleasedByDuplicate    Fault = "frees the key of the running request after a duplicate is refused"
	AnswersEmpty           Fault = "answers duplicates with an empty 200 while the first request runs"
	SharesRunningAnswer    Fault = "gives everybody with the key the answer of the running request"
	EndsWithClient         Fault = "stores the failure of a handler that ended because the client left"
	ClaimLeftByClient      Fault = "keeps the claim if the client leaves"
	FreedByClient          Fault = "frees the key if the client leaves, although the handler runs on"
	BlockedByInvalid       Fault = "keeps the claim of a refused request"
	BlockedByFailure       Fault = "keeps the claim of a failed request"
	StoresFailure          Fault = "stores failures"
	FreedAfterEffect       Fault = "frees the key of a request that failed after the effect"
	RecordsBeforeEffect    Fault = "stores the answer before it acts"
	RecordsAfterAnswer     Fault = "stores the answer after it is sent"
	RecordsReadAnswers     Fault = "stores the answer if the client has read it"
	ActsAgainAfterDeath    Fault = "acts without a key for the provider"
	RecordsSentPart        Fault = "stores the part of a streamed answer that the client has read"
	SkipsLargeAnswers      Fault = "does not store large answers"
	ForgetsSoon            Fault = "keeps records for half a second"
	LosesHeaders           Fault = "replays without header fields"
	JoinsValues            Fault = "replays the values of a header field as one value"
	RepeatsHeaders         Fault = "adds the stored header fields to those of the replay"
	RunsHandlerAgain       Fault = "runs the handler before it replays"
	LosesStatus            Fault = "replays with status 200"
	ReencodesBody          Fault = "replays the body after it was decoded and encoded again"
	ReplaysCompressed      Fault = "replays a compressed answer to everybody"
)
