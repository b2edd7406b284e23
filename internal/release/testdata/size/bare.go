package main

import (
	"io"
	"log"
	"net/http"
)

func main() {
	log.Fatal(http.ListenAndServe("localhost:8080", http.HandlerFunc(pay)))
}

func pay(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "paid") }
