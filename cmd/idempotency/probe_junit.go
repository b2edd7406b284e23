package main

import (
	"encoding/xml"
	"os"

	"github.com/idempotency-go/idempotency/probe"
)

// The elements of JUnit XML, as CI systems read them.
type (
	junitSuite struct {
		XMLName  xml.Name    `xml:"testsuite"`
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name      string        `xml:"name,attr"`
		ClassName string        `xml:"classname,attr"`
		Seconds   float64       `xml:"time,attr"`
		Failure   *junitMessage `xml:"failure"`
		Error     *junitMessage `xml:"error"`
		Skipped   *junitMessage `xml:"skipped"`
		Output    string        `xml:"system-out"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// writeJUnit writes report to a file. A check that is not made, or partly made, is a skipped test, and an
// interrupted one is an error.
func writeJUnit(path string, report *probe.Report) error {
	suite := junitSuite{Name: "idempotency probe", Tests: len(report.Results), Failures: report.Count(probe.Failed)}
	for _, result := range report.Results {
		test := junitCase{Name: result.Name, ClassName: "probe", Seconds: result.Duration.Seconds()}
		switch {
		case result.IsInterrupted:
			test.Error = &junitMessage{Message: result.Detail}
			suite.Errors++
		case result.Status == probe.Passed:
			test.Output = result.Explain()
		case result.Status == probe.Failed:
			test.Failure = &junitMessage{Message: result.Detail, Text: result.Explain()}
		default:
			test.Skipped = &junitMessage{Message: string(result.Status) + ": " + result.Detail}
			suite.Skipped++
		}
		suite.Cases = append(suite.Cases, test)
	}
	encoded, err := xml.MarshalIndent(suite, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append([]byte(xml.Header), append(encoded, '\n')...), 0o644)
}
