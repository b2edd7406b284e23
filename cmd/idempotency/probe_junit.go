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
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name      string        `xml:"name,attr"`
		ClassName string        `xml:"classname,attr"`
		Seconds   float64       `xml:"time,attr"`
		Failure   *junitMessage `xml:"failure"`
		Skipped   *junitMessage `xml:"skipped"`
		Output    string        `xml:"system-out"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// writeJUnit writes report to a file. A check that is not made, or partly made, is a skipped test.
func writeJUnit(path string, report *probe.Report) error {
	suite := junitSuite{Name: "idempotency probe", Tests: len(report.Results), Failures: report.Count(probe.Failed)}
	for _, result := range report.Results {
		test := junitCase{Name: result.Name, ClassName: "probe", Seconds: result.Duration.Seconds()}
		switch result.Status {
		case probe.Passed:
			test.Output = result.Explain()
		case probe.Failed:
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
