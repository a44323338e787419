/*
 * host LIBRARY SUPERVISOR MILLISECONDS COPY PROGRAM [ARGUMENT]...
 *
 * Loads the library, has it invoke the program, and prints how that ended. If
 * COPY is not empty, two threads invoke something else meanwhile, and when the
 * file COPY.go is there the host forks without executing anything: the copy
 * writes its pid to COPY, holds every descriptor of the host and sleeps.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void (*invoke)(char *, int, int, char **, char *, int);
static char *supervisor, *copy;

static void fail(const char *what)
{
	fprintf(stderr, "host: %s\n", what);
	exit(2);
}

static void *beside(void *unused)
{
	char *argv[] = {"sh", "-c", "exit 5", NULL};
	char text[4096];

	for (;;) {
		invoke(supervisor, 0, 3, argv, text, sizeof text);
		if (strncmp(text, "failed exit empty ", 18) != 0)
			fail(text);
		usleep(10000);
	}
	return unused;
}

static void *forks(void *unused)
{
	char name[4096], temporary[4096];
	FILE *file;

	snprintf(name, sizeof name, "%s.go", copy);
	while (access(name, F_OK) != 0)
		usleep(1000);
	switch (fork()) {
	case -1:
		fail("fork");
		break;
	case 0:
		snprintf(temporary, sizeof temporary, "%s.new", copy);
		if (!(file = fopen(temporary, "w")))
			_exit(2);
		fprintf(file, "%d\n", (int)getpid());
		fclose(file);
		rename(temporary, copy);
		for (int i = 0; i < 50; i++)
			sleep(1);
		_exit(0);
	}
	return unused;
}

int main(int argc, char **argv)
{
	char text[4096];
	pthread_t thread;
	void *library;

	if (argc < 6)
		fail("usage");
	if (!(library = dlopen(argv[1], RTLD_NOW)))
		fail(dlerror());
	if (!(invoke = (void (*)(char *, int, int, char **, char *, int))dlsym(library, "Invoke")))
		fail(dlerror());
	supervisor = argv[2];
	copy = argv[4];
	if (*copy && (pthread_create(&thread, NULL, beside, NULL) || pthread_create(&thread, NULL, beside, NULL) ||
		      pthread_create(&thread, NULL, forks, NULL)))
		fail("no thread");
	invoke(supervisor, atoi(argv[3]), argc - 5, argv + 5, text, sizeof text);
	puts(text);
	return 0;
}
