/* Requests from outside, one after the other on standard input, answered on standard output. */
#ifndef CALL_H
#define CALL_H

/* The exit code: 0 after the request "end" or the end of the input. */
int call(void);

#endif
