package main

// Program is the program, and Run what it does.
var (
	Program = main
	Run     = run
)
